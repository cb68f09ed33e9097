"""What can be said of a request before one is sent: its code, its parts, what it touches, who may send it.

`cometmq.protocol.requests` is the table of all requests. Servers decode and dispatch by its rows,
clients make their typed calls from them, and access control asks them for rights and resources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Any, Final, Generic, TypeVar

from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.header import Header, HeaderT
from cometmq.protocol.json_dialect import MAX_DIALECT_REQUEST_LENGTH, decode_body, encode_body

AnswerT = TypeVar("AnswerT", bound=Header)
BodyT = TypeVar("BodyT")
AnswerBodyT = TypeVar("AnswerBodyT")


class Right(Enum):
    """Who may send a request."""

    # Whoever reaches the port: what only reads, and what does no more harm than sending and consuming.
    NONE = auto()
    # Whoever may send to the resources that the request touches.
    PUB = auto()
    # Whoever may consume from them.
    SUB = auto()
    # A broker about itself: the handler compares the sender with whoever registered it.
    BROKER = auto()
    # Whoever runs the cluster: what stops, empties or changes a server for all its users.
    ADMIN = auto()


class ResourceKind(Enum):
    TOPIC = auto()
    GROUP = auto()
    # The cluster as a whole; it has no name in a request.
    CLUSTER = auto()


@dataclass(frozen=True, slots=True)
class Resource:
    """What a request touches, and where its name stands.

    `path` leads from the typed header to the name, or from the body's value if `in_body`: field names
    with dots between them. A list on the way stands for each of its items. Without a path there is no
    name.
    """

    kind: ResourceKind
    path: str = ""
    in_body: bool = False

    def names(self, header: Header, body: Any = None) -> Iterator[str]:
        """Find the names in a request; fields that it leaves out give none."""
        if self.path:
            yield from _values(body if self.in_body else header, self.path.split("."))


def _values(value: Any, path: list[str]) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif path and value is not None:
        yield from _values(getattr(value, path[0]), path[1:])
    elif value:
        yield value


CLUSTER: Final = Resource(ResourceKind.CLUSTER)


def topic(path: str = "topic") -> Resource:
    return Resource(ResourceKind.TOPIC, path)


def group(path: str = "consumer_group") -> Resource:
    return Resource(ResourceKind.GROUP, path)


def topics_of_body(path: str) -> Resource:
    return Resource(ResourceKind.TOPIC, path, in_body=True)


def groups_of_body(path: str) -> Resource:
    return Resource(ResourceKind.GROUP, path, in_body=True)


class BodyKind(ABC, Generic[BodyT]):
    """How the body of a request or of an answer is written and read.

    A server refuses a request with a longer body than `max_length` before its handler runs. None is
    for answers, and for requests whose bound is a setting that the handler knows (maxMessageSize).
    """

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length: Final = max_length

    @abstractmethod
    def encode(self, value: BodyT) -> bytes: ...

    @abstractmethod
    def decode(self, data: bytes | memoryview) -> BodyT:
        """Raise ProtocolError for bytes that are no such body."""


class NoBody(BodyKind[None]):
    """Nobody reads it. A request that brings one all the same is served without it."""

    def encode(self, value: None) -> bytes:  # noqa: ARG002 - there is nothing to write
        return b""

    def decode(self, data: bytes | memoryview) -> None:  # noqa: ARG002 - there is nothing to read
        return None


class RawBody(BodyKind[bytes]):
    """Bytes with a format of their own: records, properties, tables by queue."""

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes | memoryview) -> bytes:
        return bytes(data)


class JsonBody(BodyKind[BodyT]):
    """The JSON of one type. What has a bound comes from any client, so its dialect is bounded too."""

    def __init__(self, type_: type[BodyT], max_length: int | None = None) -> None:
        super().__init__(max_length)
        self.type: Final = type_

    def encode(self, value: BodyT) -> bytes:
        return encode_body(value)

    def decode(self, data: bytes | memoryview) -> BodyT:
        limit = None if self.max_length is None else MAX_DIALECT_REQUEST_LENGTH
        return decode_body(bytes(data), self.type, max_dialect_length=limit)


class RequestType(Generic[HeaderT, BodyT, AnswerT, AnswerBodyT]):
    """A row of the table: all that server and client have to know of one request code.

    `header` and `body` are what the request carries, `answer` and `answer_body` what comes back with
    success.
    """

    __slots__ = ("answer", "answer_body", "body", "code", "header", "resources", "right")

    def __init__(
        self,
        code: int,
        header: type[HeaderT],
        body: BodyKind[BodyT],
        answer: type[AnswerT],
        answer_body: BodyKind[AnswerBodyT],
        right: Right,
        *resources: Resource,
    ) -> None:
        self.code = code
        self.header = header
        self.body = body
        self.answer = answer
        self.answer_body = answer_body
        self.right = right
        self.resources = resources

    @property
    def name(self) -> str:
        """Java's name of the code, for metrics, logs and refusals; the number if it has none."""
        return self.code.name if isinstance(self.code, IntEnum) else str(self.code)

    def command(self, header: HeaderT, body: BodyT | None = None) -> RemotingCommand:
        """Encode a request; its opaque is given by the connection that sends it."""
        return request(self.code, header, b"" if body is None else self.body.encode(body))

    def __repr__(self) -> str:
        return f"RequestType({self.name})"


AnyRequestType = RequestType[Any, Any, Any, Any]
NO_BODY: Final = NoBody()
