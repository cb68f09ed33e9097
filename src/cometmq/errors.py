"""The one error tree.

CometMQError
├── ConfigError               a key, a value or a file of the configuration does not fit
├── IllegalArgumentError      a caller's value breaks a rule (also a ValueError)
│   ├── FilterExpressionError an SQL92 expression that does not parse
│   └── UnknownOptionError    a constructor has no option of that name (also a TypeError)
├── ClientStateError          used before start, after close, or started twice
│   └── ForkedClientError     a client that was started before a fork is used in the child
├── RouteNotFoundError        no name server knows a route for the topic
├── ProtocolError             bytes from a peer that are no frame, header or record
│   └── FrameTooLargeError
├── SendForbiddenError        a hook of the user's forbade a send
├── RemotingError             the exchange with a peer failed
│   ├── ConnectError
│   ├── ConnectionLostError
│   ├── RequestTimeoutError
│   ├── TooManyRequestsError  a named limit of ours refused the call
│   └── RpcHookError          an RPC hook of the user's failed
├── KeyStoreError             a store of `cometmq.idempotent` could not be used
├── DataLossError             messages that a bulk read was to give are gone
├── DamagedMessageError       a message is not what was stored, and its reader wants to stop there
├── RemoteError               the peer answered with a code other than success
│   └── AccessDeniedError     it minds who asked: access key, secret key or permissions
└── StoreError                the store directory
    ├── StoreLockedError      another process owns it
    ├── StoreUnusableError    not a store, or not one that this user can use
    ├── StoreCorruptError     bytes on disk contradict their format
    ├── StoreFullError        no space left
    ├── StoreBusyError        the disk is behind: the same call may succeed in a moment
    └── StoreClosedError

Retry loops read the class flags: `retriable` says that the same call may succeed elsewhere or
later, `refresh_route` that the route which led here is probably stale.
"""

from __future__ import annotations

from typing import ClassVar


class CometMQError(Exception):
    """Base of every error raised by CometMQ.

    `code` is a RocketMQ response code (`cometmq.protocol.codes.ResponseCode`) where one exists,
    `remark` the peer's text, `address` the peer as `host:port`.
    """

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        remark: str | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.remark = remark
        self.address = address


class ConfigError(CometMQError):
    """A configuration file, key or value does not fit; the message names it and the remedy."""


class IllegalArgumentError(CometMQError, ValueError):
    """A value handed to the public API breaks a rule; the message names the value and the rule."""


class FilterExpressionError(IllegalArgumentError):
    """An SQL92 expression does not parse; `line` and `column` count from 1.

    The code is Java's SUBSCRIPTION_PARSE_FAILED.
    """

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {reason}", code=23)
        self.reason = reason
        self.line = line
        self.column = column


class UnknownOptionError(IllegalArgumentError, TypeError):
    """A client has no option of that name; the message tells the options that there are."""


class ClientStateError(CometMQError):
    """The client is not in the state that the call needs (not started, closed, started twice)."""


class ForkedClientError(ClientStateError):
    """The client was started by the parent process; a child makes clients of its own."""


class RouteNotFoundError(CometMQError):
    """No name server knows a broker for the topic."""

    retriable = True
    refresh_route = True


class ProtocolError(CometMQError):
    """Bytes from a peer that do not decode; the connection that brought them cannot go on."""


class FrameTooLargeError(ProtocolError):
    """A frame declares more bytes than the limit allows."""


class SendForbiddenError(CometMQError):
    """A check-forbidden hook of the user's raised; the cause is what it raised."""


class RemotingError(CometMQError):
    """The exchange with a peer failed below the level of response codes."""

    retriable = True


class ConnectError(RemotingError):
    """No connection could be made."""

    refresh_route = True


class ConnectionLostError(RemotingError):
    """The connection closed while the call was under way: it may or may not have been served."""

    refresh_route = True


class RequestTimeoutError(RemotingError):
    """No answer came in time: the call may or may not have been served."""

    refresh_route = True


class TooManyRequestsError(RemotingError):
    """A limit of this client on outstanding requests was reached; the message names it."""


class RpcHookError(RemotingError):
    """An RPC hook of the user's raised, which failed the call; the cause is what it raised."""


class RemoteError(CometMQError):
    """The peer answered with a response code other than success (Java: MQBrokerException)."""


class AccessDeniedError(RemoteError):
    """The peer does not serve whoever asked: it wants a signature, knows another one, or does not
    permit this; the message says which, and the remedy. No error holds a secret.
    """


class KeyStoreError(CometMQError):
    """A store of keys for idempotent consumption failed; the cause is the database's error."""

    retriable = True


class DataLossError(CometMQError):
    """Messages that were to be read are gone; the message names queue, offsets, cause and remedy."""


class DamagedMessageError(CometMQError):
    """A message is not what was stored; the text names its topic, queue, offset, place and broker.

    `queue_offset` is its offset, `data` are the bytes that came instead of it.
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
    """The directory is no store of a layout we know, or this user may not use it; text says which
    path and what to do.
    """


class StoreCorruptError(StoreError):
    """Bytes on disk contradict their format; the message names file and offset."""


class StoreFullError(StoreError):
    """The disk has no room for the next file, or is so full that it must not be filled further."""


class StoreBusyError(StoreError):
    """The disk does not keep up (Java: SYSTEM_BUSY, OS_PAGE_CACHE_BUSY), or a damaged part of the
    store is being repaired (FLOW_CONTROL).
    """

    retriable = True

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message, code=code)


class MessageIllegalError(StoreError):
    """A message breaks a limit of the store; text names limit and value (Java: MESSAGE_ILLEGAL)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=13)


class StoreClosedError(StoreError):
    """The store is not open (Java: SERVICE_NOT_AVAILABLE)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=14)
