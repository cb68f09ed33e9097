"""Describe requests before any is sent: code, parts, resources that they touch, who may send them.

`cometmq.protocol.requests` is the table of all requests. Servers decode and dispatch by its rows,
clients make their typed calls from them, and access control reads rights and resources from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Any, Final, Generic, TypeVar

from cometmq.protocol.command import RemotingCommand, Request, request
from cometmq.protocol.fastjson.dialect import MAX_DIALECT_REQUEST_LENGTH, decode_body, encode_body
from cometmq.protocol.header import Header, HeaderT
from cometmq.protocol.limits import check_objects, listed_names
from cometmq.protocol.pop.handle import asked_topic

AnswerT = TypeVar("AnswerT", bound=Header)
BodyT = TypeVar("BodyT")
AnswerBodyT = TypeVar("AnswerBodyT")


class Right(Enum):
    """Says who may send a request."""

    # Anybody who reaches the port; with access control, any known account. For requests that show no
    # more than names and addresses.
    NONE = auto()
    # Any account that may send to the resources that the request touches.
    PUB = auto()
    # Any account that may consume from the resources that the request touches.
    SUB = auto()
    # Any account that may send to the resources that the request touches, or consume from them: for
    # requests that only read about them.
    ANY = auto()
    # Anybody who reaches the port; with access control, an operator of the cluster. For requests that
    # read of a server, or of all topics, groups and clients.
    INSPECT = auto()
    # A broker, about itself: the handler compares the sender with the account that registered the broker.
    BROKER = auto()
    # An operator of the cluster: for requests that stop, empty or change a server for all its users.
    ADMIN = auto()


class Action(Enum):
    """Says what a request does with its resources; policies of ACL 2.0 allow or deny actions.

    The values are RocketMQ's texts. An entry of a policy that says ALL allows or denies all of them.
    """

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


# For requests that every known account may send: Java's access control does not check them either.
ANY_ACCOUNT: Final = ()
# The actions of rows that say nothing else. A row with Right.NONE has to say it.
_ACTIONS_OF: Final = {
    Right.PUB: (Action.PUB,),
    Right.SUB: (Action.SUB,),
    Right.ANY: (Action.GET,),
    Right.INSPECT: (Action.GET,),
    Right.BROKER: (Action.UPDATE,),
    Right.ADMIN: (Action.UPDATE,),
}


class ResourceKind(Enum):
    TOPIC = auto()
    GROUP = auto()
    # The cluster as a whole; few requests name it.
    CLUSTER = auto()


@dataclass(frozen=True, slots=True)
class Resource:
    """Holds what a request touches, and where its name stands.

    `path` leads from the typed header to the name, or from the body's value if `in_body`: field
    names separated by dots. A list on the way stands for each of its items, and a text with
    `separator` for each of its parts. Without a path, the request holds no name.
    """

    kind: ResourceKind
    path: str = ""
    in_body: bool = False
    separator: str = ""

    def names(self, header: Header, body: Any = None) -> Iterator[str]:
        """Yield the names in a request; a field that the request leaves out gives none.

        Raises ProtocolError for a list with too many names.
        """
        if self.path:
            values = _values(body if self.in_body else header, self.path.split("."))
            if not self.separator:
                yield from values
                return
            for value in values:
                yield from listed_names(value, self.separator)


@dataclass(frozen=True, slots=True)
class PoppedTopic(Resource):
    """Names the topic for which a group asked when it got a message: in requests about the message, its retry topic
    for the group stands for it. The name of such a topic alone does not show where the group's name ends.
    """

    def names(self, header: Header, body: Any = None) -> Iterator[str]:  # noqa: ARG002 - as its base
        name, group = header.topic, header.consumer_group  # type: ignore[attr-defined]  # rows with it have both
        yield asked_topic(name, group)


def _values(value: Any, path: list[str]) -> Iterator[str]:
    found = _items([value])
    for step in path:
        found = _items([getattr(each, step) for each in found if each is not None])
    return (each for each in found if each)


def _items(values: list[Any]) -> list[Any]:
    """Put the items of lists in the place of these lists."""
    while any(isinstance(each, list) for each in values):
        values = [item for each in values for item in (each if isinstance(each, list) else [each])]
    return values


CLUSTER: Final = Resource(ResourceKind.CLUSTER)


def cluster(path: str = "cluster_name") -> Resource:
    """Name the cluster that a broker gives when it speaks of itself."""
    return Resource(ResourceKind.CLUSTER, path)


def topic(path: str = "topic", separator: str = "") -> Resource:
    return Resource(ResourceKind.TOPIC, path, separator=separator)


def popped_topic() -> Resource:
    return PoppedTopic(ResourceKind.TOPIC, "topic")


def group(path: str = "consumer_group", separator: str = "") -> Resource:
    return Resource(ResourceKind.GROUP, path, separator=separator)


def topics_of_body(path: str) -> Resource:
    return Resource(ResourceKind.TOPIC, path, in_body=True)


def groups_of_body(path: str) -> Resource:
    return Resource(ResourceKind.GROUP, path, in_body=True)


class BodyKind(ABC, Generic[BodyT]):
    """Writes and reads the body of a request or of an answer.

    A server refuses a request whose body is longer than `max_length` before its handler runs. None
    is for answers, and for requests whose limit is a setting that the handler knows
    (maxMessageSize).
    """

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length: Final = max_length

    @abstractmethod
    def encode(self, value: BodyT) -> bytes: ...

    @abstractmethod
    def decode(self, data: bytes | memoryview) -> BodyT:
        """Decode a body. Raise ProtocolError for bytes that are no such body."""


class NoBody(BodyKind[None]):
    """Says that there is no body. A request that brings one nevertheless is served without it."""

    def encode(self, value: None) -> bytes:  # noqa: ARG002 - there is nothing to write
        return b""

    def decode(self, data: bytes | memoryview) -> None:  # noqa: ARG002 - there is nothing to read
        return None


class RawBody(BodyKind[bytes]):
    """Passes on bytes with a format of their own: records, properties, tables by queue."""

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes | memoryview) -> bytes:
        return bytes(data)


class JsonBody(BodyKind[BodyT]):
    """Writes and reads JSON of one type. With `max_length` any client may send it, so its dialect
    is bounded, too. `check` raises ProtocolError for a value with too many entries, before the
    server judges or carries out any of them.
    """

    def __init__(
        self,
        type_: type[BodyT],
        max_length: int | None = None,
        check: Callable[[BodyT], None] | None = None,
    ) -> None:
        super().__init__(max_length)
        self.type: Final = type_
        self._check = check

    def encode(self, value: BodyT) -> bytes:
        return encode_body(value)

    def decode(self, data: bytes | memoryview) -> BodyT:
        data = bytes(data)
        if self.max_length is None:
            limit = None
        else:
            limit = MAX_DIALECT_REQUEST_LENGTH
            check_objects(data.count(b"{"))
        value = decode_body(data, self.type, max_dialect_length=limit)
        if self._check is not None:
            self._check(value)
        return value


class RequestType(Generic[HeaderT, BodyT, AnswerT, AnswerBodyT]):
    """A row of the table: everything that server and client have to know about one request code.

    `header` and `body` are those of the request, `answer` and `answer_body` those of a successful
    answer. `on_slave` is the code by which a slave refuses the request, None if it serves the
    request, SUCCESS if it leaves the request to its master. `actions` are those of the request on
    each of its resources: an account that may do one of them may send it. They follow from `right`
    unless they are given.
    """

    __slots__ = (
        "actions",
        "answer",
        "answer_body",
        "body",
        "code",
        "header",
        "on_slave",
        "resources",
        "right",
    )

    def __init__(
        self,
        code: int,
        header: type[HeaderT],
        body: BodyKind[BodyT],
        answer: type[AnswerT],
        answer_body: BodyKind[AnswerBodyT],
        right: Right,
        *resources: Resource,
        on_slave: int | None = None,
        actions: tuple[Action, ...] | None = None,
    ) -> None:
        assert resources, f"request code {code} has no resource"
        if actions is None:
            assert right in _ACTIONS_OF, (
                f"request {code} has Right.NONE: say which actions it takes"
            )
            actions = _ACTIONS_OF[right]
        self.actions = actions
        self.code = code
        self.header = header
        self.body = body
        self.answer = answer
        self.answer_body = answer_body
        self.right = right
        self.resources = resources
        self.on_slave = on_slave

    @property
    def name(self) -> str:
        """Return Java's name of the code, for metrics, logs and refusals; the number if it has
        none.
        """
        return self.code.name if isinstance(self.code, IntEnum) else str(self.code)

    def command(self, header: HeaderT, body: BodyT | None = None) -> RemotingCommand:
        """Encode a request; the connection that sends it sets its opaque."""
        return request(self.code, header, b"" if body is None else self.body.encode(body))

    def typed_body(self, call: Request[HeaderT]) -> BodyT:
        """Decode the body of a request once: rules and handler look at the same value.

        Raise ProtocolError for bytes that are no such body.
        """
        if call.typed_body is None:
            call.typed_body = self.body.decode(call.body)
        body: BodyT = call.typed_body
        return body

    def __repr__(self) -> str:
        return f"RequestType({self.name})"


AnyRequestType = RequestType[Any, Any, Any, Any]
NO_BODY: Final = NoBody()
