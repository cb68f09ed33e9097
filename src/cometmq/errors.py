"""Define the one error tree.

CometMQError
├── ConfigError               a key, a value or a file of the configuration does not fit
│   └── MissingExtraError     a feature needs a package that is not installed (also a
│                             ModuleNotFoundError)
├── IllegalArgumentError      a caller's value breaks a rule (also a ValueError)
│   ├── UnencodableError      a value does not fit the codec of its topic
│   ├── FilterExpressionError an SQL92 expression that does not parse
│   └── UnknownOptionError    a constructor has no option of that name (also a TypeError)
├── ClientStateError          used before start, after close, or started twice
│   └── ForkedClientError     a client that was started before a fork is used in the child
├── AccessRefusedError        our server's access control refuses a request
├── RouteNotFoundError        no name server knows a route for the topic
├── ProtocolError             bytes from a peer are no frame, header or record
│   └── FrameTooLargeError
├── LimitError                a named limit of a server refuses a request
├── SendForbiddenError        a hook of the user's forbade a send
├── RemotingError             the exchange with a peer failed
│   ├── ConnectError          (also a ConnectionError)
│   ├── ConnectionLostError   (also a ConnectionError)
│   ├── RequestTimeoutError   (also a TimeoutError)
│   │   └── SilentServerError a server has said nothing to anybody for a while
│   ├── TooManyRequestsError  a named limit of ours refused the call
│   └── RpcHookError          an RPC hook of the user's failed
├── ServersFailedError        of the servers that a call went to, some failed; it has all results
├── KeyStoreError             a store of `cometmq.idempotent` could not be used
├── UndecodableError          a body does not fit the codec of its topic, or a schema
├── SchemaRegistryError       a registry of schemas did not answer, or refused
│   └── SchemaRefusedError    a schema is not compatible with its subject's, or is none
├── DataLossError             messages that a bulk read should give are gone
├── DamagedMessageError       a message is not what was stored, and its reader wants to stop there
├── RemoteError               the peer answered with a code other than success
│   ├── AccessDeniedError     the peer refuses this client: its keys or its permissions
│   └── QueueLockedError      another member of the group holds the lock of the queue
└── StoreError                the store directory could not be used
    ├── StoreLockedError      another process owns the directory
    ├── StoreUnusableError    the directory is no store, or this user cannot use it
    ├── StoreCorruptError     bytes on disk contradict their format
    ├── StoreFullError        no space is left
    ├── StoreBusyError        the disk does not keep up: the same call may succeed in a moment
    │   └── StoreStarvedError no file descriptor or memory is free at the moment
    ├── MessageIllegalError   a message breaks a limit of the store
    └── StoreClosedError      the store is not open

Every retry loop reads the same three attributes of an error, and nothing else, to decide what to do
(docs/internals/clients.md):

`retriable`      the same call may succeed at the same peer a moment later
`refresh_route`  the route that led to this peer may be stale, or another broker may serve the call
`stored`         what a failed send says of its message: in the log, not in it, or nobody knows

An error that is neither `retriable` nor `refresh_route` is final.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple


class Stored(Enum):
    """Says whether the message of a failed send is in the log."""

    YES = "stored"
    NO = "not stored"
    UNKNOWN = "stored or not"


class AnswerMeaning(NamedTuple):
    """Says what a response code other than success means to the client that asked."""

    retriable: bool
    refresh_route: bool
    stored: Stored


_LATER: Final = AnswerMeaning(retriable=True, refresh_route=False, stored=Stored.NO)
_ELSEWHERE: Final = AnswerMeaning(retriable=False, refresh_route=True, stored=Stored.NO)
_LATER_OR_ELSEWHERE: Final = AnswerMeaning(retriable=True, refresh_route=True, stored=Stored.NO)
_FINAL: Final = AnswerMeaning(retriable=False, refresh_route=False, stored=Stored.NO)
_STORED: Final = AnswerMeaning(retriable=False, refresh_route=False, stored=Stored.YES)

# By response code (`cometmq.protocol.codes.ResponseCode`); a code that is not here is final.
ANSWER_MEANINGS: Final[dict[int, AnswerMeaning]] = {
    # SYSTEM_ERROR. Java's brokers answer so after any exception, even one after the append.
    1: AnswerMeaning(retriable=True, refresh_route=False, stored=Stored.UNKNOWN),
    2: _LATER,  # SYSTEM_BUSY
    # The message is in the log, but no disk or slave confirmed in time that it has the message.
    10: _STORED,  # FLUSH_DISK_TIMEOUT
    11: _STORED,  # SLAVE_NOT_AVAILABLE
    12: _STORED,  # FLUSH_SLAVE_TIMEOUT
    14: _LATER,  # SERVICE_NOT_AVAILABLE: the broker starts, stops, or its disk is full
    # NO_PERMISSION. Operators take the permission from a broker, or a topic there, to drain it.
    16: _ELSEWHERE,
    # TOPIC_NOT_EXIST. A broker hears of a new topic later than name servers do.
    17: _LATER_OR_ELSEWHERE,
    204: _ELSEWHERE,  # NO_BUYER_ID
    205: _ELSEWHERE,  # NOT_IN_CURRENT_UNIT
    215: _LATER,  # FLOW_CONTROL
    1500: _LATER_OR_ELSEWHERE,  # GO_AWAY: a proxy that stops
}


class CometMQError(Exception):
    """Base of every error raised by CometMQ.

    `code` is a RocketMQ response code (`cometmq.protocol.codes.ResponseCode`) where one exists,
    `remark` the peer's text, `address` the peer as `host:port`. `limit` is the name of the limit
    that was exceeded, as `cometmq.metrics.limits` has it, "" if it was none: a server counts
    its refusals by that name.
    """

    retriable: bool = False
    refresh_route: bool = False
    stored: Stored = Stored.NO
    limit: str = ""

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        remark: str | None = None,
        address: str | None = None,
        limit: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.remark = remark
        self.address = address
        if limit:
            self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross processes (Spark, pools). Exception would call the constructor with the text
        # alone, and some constructors want more than that.
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(
    kind: type[CometMQError], args: tuple[Any, ...], state: dict[str, Any]
) -> CometMQError:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError has none before its constructor ran
    error.__dict__.update(state)
    return error


class ConfigError(CometMQError):
    """A configuration file, key or value does not fit; the message names it and the remedy."""


class MissingExtraError(ConfigError, ModuleNotFoundError):
    """A feature needs a package that is not installed. The text has the command that installs it."""


class IllegalArgumentError(CometMQError, ValueError):
    """A value handed to the public API breaks a rule; the message names the value and the rule."""


class FilterExpressionError(IllegalArgumentError):
    """An SQL92 expression does not parse; `line` and `column` count from 1.

    The code is Java's SUBSCRIPTION_PARSE_FAILED.
    """

    def __init__(self, reason: str, line: int, column: int, *, limit: str = "") -> None:
        super().__init__(f"line {line}, column {column}: {reason}", code=23, limit=limit)
        self.reason = reason
        self.line = line
        self.column = column


class UnencodableError(IllegalArgumentError):
    """A value does not fit the codec of its topic; the text names topic, type and, if known, the field."""


class UnknownOptionError(IllegalArgumentError, TypeError):
    """A client has no option of that name; the message lists the options that it has."""


class ClientStateError(CometMQError):
    """The client is not in the state that the call needs (not started, closed, started twice)."""


class ForkedClientError(ClientStateError):
    """The parent process started the client; a child process must make clients of its own."""


class RouteNotFoundError(CometMQError):
    """No name server knows a broker for the topic."""

    retriable = True
    refresh_route = True


class ProtocolError(CometMQError):
    """Bytes from a peer do not decode; the connection that brought them cannot go on."""

    stored = Stored.UNKNOWN


class FrameTooLargeError(ProtocolError):
    """A frame declares more bytes than the limit allows."""


class AccessRefusedError(CometMQError):
    """Access control of our server refuses a request; the text says why, without any secret.

    `reason` is one of a few words, for counters. `account` is the access key or user whose signature
    was right, "" if none was.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        remark: str | None = None,
        address: str | None = None,
        reason: str = "permission",
        account: str = "",
    ) -> None:
        super().__init__(message, code=code, remark=remark, address=address)
        self.reason = reason
        self.account = account


class LimitError(CometMQError):
    """A named limit of a server refuses a request, which was not served; the text names what there
    is of it, the limit, its value and the remedy.

    `value` is what there is, or would be with the request, `most` the limit's value. The code is one
    of Java's that has clients do what the remedy says.
    """

    def __init__(
        self, what: str, value: int, limit: str, most: int, remedy: str, *, code: int
    ) -> None:
        super().__init__(
            f"{value} {what}, the limit {limit} is {most}; {remedy}", code=code, limit=limit
        )
        self.value = value
        self.most = most


class SendForbiddenError(CometMQError):
    """A CheckForbiddenHook of the user's forbade a send; the cause is the hook's exception."""

    # Hooks judge by queue and broker, so a send to another broker may be permitted (as in Java).
    refresh_route = True


class RemotingError(CometMQError):
    """The exchange with a peer failed below the level of response codes."""

    retriable = True
    stored = Stored.UNKNOWN


class ConnectError(RemotingError, ConnectionError):
    """No connection could be made."""

    refresh_route = True
    stored = Stored.NO


class ConnectionLostError(RemotingError, ConnectionError):
    """The connection closed during the call: the peer may or may not have served the call."""

    refresh_route = True


class RequestTimeoutError(RemotingError, TimeoutError):
    """No answer came in time: the peer may or may not have served the call."""

    refresh_route = True


class SilentServerError(RequestTimeoutError):
    """A server has sent nothing to any caller since `since_ms`, and this caller was in haste."""

    # In ms since the epoch.
    since_ms: int = 0


class TooManyRequestsError(RemotingError):
    """A limit of this client on outstanding requests was reached; the message names the limit."""

    stored = Stored.NO


class RpcHookError(RemotingError):
    """An RpcHook of the user's failed the call by raising; the cause is the hook's exception."""


class RemoteError(CometMQError):
    """The peer answered with a response code other than success (Java: MQBrokerException)."""

    _code_says = True

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        remark: str | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(message, code=code, remark=remark, address=address)
        if code is not None and self._code_says:
            self.retriable, self.refresh_route, self.stored = ANSWER_MEANINGS.get(code, _FINAL)


class AccessDeniedError(RemoteError):
    """The peer refuses this client: it wants a signature, computed another one, or does not permit
    the request. The message says which, and the remedy. No error holds a secret.
    """

    # A repeated call comes from the same client, so it is refused again, whatever the code is.
    _code_says = False


class QueueLockedError(RemoteError):
    """Another member of the group holds the queue's lock, for a minute at most after that member's
    end.
    """

    retriable = True


class ServersFailedError(CometMQError):
    """Some of the servers that a call went to failed.

    `errors` has the error of each of them, `results` what the call returned for each of the others,
    both by address. The code is that of the errors if they all have the same. So is `stored`, which
    is else UNKNOWN.
    """

    def __init__(
        self, message: str, *, results: Mapping[str, Any], errors: Mapping[str, CometMQError]
    ) -> None:
        codes = {error.code for error in errors.values()}
        super().__init__(message, code=codes.pop() if len(codes) == 1 else None)
        self.results = results
        self.errors = errors
        self.retriable = all(error.retriable for error in errors.values())
        self.refresh_route = any(error.refresh_route for error in errors.values())
        stored = {error.stored for error in errors.values()}
        self.stored = stored.pop() if len(stored) == 1 else Stored.UNKNOWN


class KeyStoreError(CometMQError):
    """A store of keys for idempotent consumption failed; the cause is the database's error."""

    retriable = True


class UndecodableError(CometMQError):
    """A body does not fit the codec of its topic, or a schema is wrong.

    The text names topic, schema and fault. `schema_id` is the id of the body's schema, "" without one.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        schema_id: str = "",
        limit: str = "",
        **common: Any,
    ) -> None:
        super().__init__(message, limit=limit, **common)
        self.topic = topic
        self.schema_id = schema_id


class SchemaRegistryError(CometMQError):
    """A registry of schemas did not answer, refused, or answered with something else.

    `code` is the registry's own error code, or the HTTP status, if it answered. `retriable` says whether
    the same question may be answered a moment later.
    """

    def __init__(
        self,
        message: str,
        *,
        retriable: bool = False,
        code: int | None = None,
        remark: str | None = None,
        address: str | None = None,
        limit: str = "",
    ) -> None:
        super().__init__(message, code=code, remark=remark, address=address, limit=limit)
        self.retriable = retriable


class SchemaRefusedError(SchemaRegistryError):
    """A registry does not take a schema: it breaks the compatibility of its subject, or is no schema."""


class DataLossError(CometMQError):
    """Messages that should be read are gone; the text names queue, offsets, cause and remedy."""


class DamagedMessageError(CometMQError):
    """A message is not what was stored.

    The text names the message's topic, broker, queue, offset and commit-log offset. `queue_offset`
    is the message's offset; `data` has the bytes that came instead of the message.
    """

    def __init__(self, message: str, *, queue_offset: int, data: bytes) -> None:
        super().__init__(message)
        self.queue_offset = queue_offset
        self.data = data


class StoreError(CometMQError):
    """The store directory could not be used."""


class StoreLockedError(StoreError):
    """Another process holds the lock of the store directory."""


class StoreUnusableError(StoreError):
    """The directory is no store of a layout that we know, or this user may not use it. The text
    names the path and the remedy.
    """


class StoreCorruptError(StoreError):
    """Bytes on disk contradict their format; the message names file and offset."""


class StoreFileLostError(StoreError):
    """Somebody else removed, replaced or cut a file while the store used it. The text names the file
    and the remedy.
    """


class StoreFullError(StoreError):
    """The disk has no room for the next file, or is so full that it must not be filled further."""


class StoreBusyError(StoreError):
    """The disk does not keep up (Java: SYSTEM_BUSY, OS_PAGE_CACHE_BUSY), or a damaged part of the
    store is being repaired (FLOW_CONTROL).
    """

    retriable = True

    def __init__(self, message: str, code: int = 2, *, limit: str = "") -> None:
        super().__init__(message, code=code, limit=limit)


class StoreStarvedError(StoreBusyError):
    """The system has no file descriptor or memory to spare: nothing was written, and nothing is lost.
    The message names the limit and what to do.
    """


class MessageIllegalError(StoreError):
    """A message breaks a limit of the store; the text names limit and value (Java:
    MESSAGE_ILLEGAL).
    """

    def __init__(self, message: str, *, limit: str = "") -> None:
        super().__init__(message, code=13, limit=limit)


class StoreClosedError(StoreError):
    """The store is not open (Java: SERVICE_NOT_AVAILABLE)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=14)
