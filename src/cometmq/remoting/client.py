"""Call servers by address, over one connection to each (Java: NettyRemotingClient)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Container
from typing import Any, Final, Generic, TypeVar

from cometmq.errors import ClientStateError, ConnectError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.frame import SerializeType
from cometmq.protocol.header import HeaderT
from cometmq.protocol.request_type import AnswerBodyT, AnswerT, BodyT, RequestType
from cometmq.remoting.connection import DEFAULT_LIMITS, Connection, ConnectionLimits, close_all
from cometmq.remoting.credentials import Credentials, Signer, refused
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.hooks import RpcHooks
from cometmq.runtime.sockets.addresses import bare_host
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.runtime.tasks import TaskOwner
from cometmq.tls.contexts import Tls, handshake_fault

ASK_TIMEOUT_S: Final = 3.0
# Not Final: mypyc would copy it to where it is used, and tests on busy machines have it larger.
CONNECT_TIMEOUT_S = 3.0
ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)


class Answer(Generic[AnswerT, AnswerBodyT]):
    """The answer to a typed call; `header` and `body` decode it when they are read.

    Both raise ProtocolError if the answer does not fit the request's row. An answer with one of the
    `also` codes may not fit.
    """

    __slots__ = ("_request_type", "command")

    def __init__(
        self, request_type: RequestType[Any, Any, AnswerT, AnswerBodyT], command: RemotingCommand
    ) -> None:
        self.command = command
        self._request_type = request_type

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def header(self) -> AnswerT:
        return self.command.header(self._request_type.answer)

    @property
    def body(self) -> AnswerBodyT:
        return self._request_type.answer_body.decode(self.command.body)


class RemotingClient:
    """Keeps one connection per address, made on first use and again after it was lost.

    `handlers` serve the requests that peers send over these connections. `on_connect` is called with
    the address and each new connection. `rpc_hooks` see every call. With `credentials` each request
    is signed; with `tls` each connection is encrypted (ConfigError if its files cannot be used): by
    settings, or by a function that returns the context for the next connection.
    Connections are made through `network`, each within `connect_timeout_s` (default: CONNECT_TIMEOUT_S).
    For the loop that first uses it.
    """

    def __init__(
        self,
        handlers: Handlers | None = None,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        serialize_type: SerializeType = SerializeType.JSON,
        connect_timeout_s: float | None = None,
        on_connect: Callable[[str, Connection], None] | None = None,
        credentials: Credentials | None = None,
        tls: Tls | Callable[[], ssl.SSLContext] | None = None,
        network: Network = TCP_NETWORK,
    ) -> None:
        self._handlers = handlers or Handlers()
        self._limits = limits
        self._serialize_type = serialize_type
        self._connect_timeout_s = (
            CONNECT_TIMEOUT_S if connect_timeout_s is None else connect_timeout_s
        )
        self._on_connect = on_connect
        self._owner = TaskOwner("remoting-client")
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False
        self._network = network
        self._tls = tls if tls is None or callable(tls) else _always(tls.context())
        self.rpc_hooks = RpcHooks(None if credentials is None else Signer(credentials))

    def connected(self, address: str) -> Connection | None:
        """Return the open connection to `address`, if there is one."""
        connection = self._connections.get(address)
        return connection if connection is not None and not connection.closed else None

    def addresses(self) -> frozenset[str]:
        """Return the addresses that connections lead to. For any thread."""
        return frozenset(self._connections.copy())

    async def connection(self, address: str) -> Connection:
        """Return the connection to `address` (`host:port`); connect if needed. Raises ConnectError."""
        if (connection := self.connected(address)) is not None:
            return connection
        if self._closed:
            raise ClientStateError("the remoting client is closed")
        task = self._connecting.get(address)
        if task is None:
            task = self._owner.spawn(
                self._connect(address), f"connect-{address}", log_failure=False
            )
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        try:
            # Shielded, so that one caller's cancellation does not fail others that wait for the task.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise ClientStateError("the remoting client was closed meanwhile") from None
            raise

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Return the answer of `address`, whatever its code. Raises a kind of RemotingError.

        The time for connecting counts as well.
        """
        connection = self.connected(address)
        if connection is None:
            connection, timeout_s = await self._connection_within(address, timeout_s)
        if not self.rpc_hooks:
            return await connection.call(command, timeout_s)
        self.rpc_hooks.before(address, command)
        answer = await connection.call(command, timeout_s)
        self.rpc_hooks.after(address, command, answer)
        return answer

    def begin_call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> asyncio.Future[RemotingCommand] | None:
        """Send a request at once and return a future of its answer, whatever its code; return None
        if `call` would have to wait first, for a connection or for a peer that does not read, or if
        a hook has to see the answer.

        So a caller of many requests needs no task for each. The future may fail as
        `Connection.call_nowait` says.
        """
        connection = self.connected(address)
        if connection is None or connection.congested or self.rpc_hooks.see_answers:
            return None
        self.rpc_hooks.before(address, command)
        return connection.call_nowait(command, timeout_s)

    async def ask(
        self,
        address: str,
        request_type: RequestType[HeaderT, BodyT, AnswerT, AnswerBodyT],
        header: HeaderT,
        body: BodyT | None = None,
        *,
        what: str,
        timeout_s: float = ASK_TIMEOUT_S,
        also: Container[int] = (),
    ) -> Answer[AnswerT, AnswerBodyT]:
        """Send the request of a row of `cometmq.protocol.requests`, and return its answer.

        Raises RemoteError if the code of the answer is neither success nor among `also`; its text
        says that `what` was refused. Raises a kind of RemotingError, as `call` does.
        """
        answer = await self.call(address, request_type.command(header, body), timeout_s)
        if answer.code != ResponseCode.SUCCESS and answer.code not in also:
            raise refused(answer, address, what)
        return Answer(request_type, answer)

    async def send_oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that is never answered. Raises ConnectError if connecting fails."""
        connection = self.connected(address) or await self.connection(address)
        self.rpc_hooks.before(address, command)
        connection.send_oneway(command)

    def send_oneway_now(
        self, address: str, command: RemotingCommand
    ) -> tuple[Connection, int] | None:
        """Do as `send_oneway_bounded` does, or return None if that would have to wait."""
        connection = self.connected(address)
        if connection is None or connection.congested:
            return None
        self.rpc_hooks.before(address, command)
        return connection, connection.send_oneway(command)

    async def send_oneway_bounded(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> tuple[Connection, int]:
        """Send a request that is never answered, once the connection is not congested.

        So a peer that does not read holds up the caller instead of filling the memory. Return the
        connection and the number of bytes that were written to it. Raises RequestTimeoutError if
        the connection stays congested for `timeout_s`, ConnectError if connecting fails.
        """
        connection = self.connected(address)
        if connection is None:
            connection, timeout_s = await self._connection_within(address, timeout_s)
        await connection.wait_writable(timeout_s)
        self.rpc_hooks.before(address, command)
        return connection, connection.send_oneway(command)

    def close_connection(self, address: str) -> None:
        """Close the connection to `address`; the next use makes a new one."""
        if (connection := self._connections.pop(address, None)) is not None:
            connection.close()

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self._closed = True
        await self._owner.close()
        await close_all(self._connections.values())

    async def _connection_within(self, address: str, timeout_s: float) -> tuple[Connection, float]:
        """Return the connection to `address`, and how much of `timeout_s` is left after connecting.

        Raises ConnectError, also if nothing is left. Connecting goes on for others who wait for it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self.connection(address)
        except TimeoutError as error:
            raise ConnectError(
                f"no connection to {address} within the {timeout_s:g} s of the call",
                address=address,
            ) from error
        return connection, deadline - loop.time()

    async def open(self, address: str, new_protocol: Callable[[], ProtocolT]) -> ProtocolT:
        """Connect to `address` for a protocol object of the caller's, who closes it and has `rpc_hooks`
        see its requests. Raises ConnectError.
        """
        host, port = split_address(address)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._network.connect(
                    new_protocol, host, port, tls=None if self._tls is None else self._tls()
                )
        except TimeoutError as error:
            raise ConnectError(
                f"no connection to {address} within {self._connect_timeout_s} s", address=address
            ) from error
        except OSError as error:
            fault = str(error) if self._tls is None else handshake_fault(error)
            raise ConnectError(f"no connection to {address}: {fault}", address=address) from error

    async def _connect(self, address: str) -> Connection:
        connection = await self.open(address, self._new_connection)
        if connection.closed:
            # Its peer left before this task had its turn, and `on_close` was called for nobody. Its
            # user notices that; it must not stay among the connections.
            return connection
        self._connections[address] = connection
        connection.on_close.append(lambda lost: self._lost(address, lost))
        if self._on_connect is not None:
            self._on_connect(address, connection)
        return connection

    def _new_connection(self) -> Connection:
        return Connection(
            self._handlers,
            self._owner,
            limits=self._limits,
            serialize_type=self._serialize_type,
        )

    def _lost(self, address: str, connection: Connection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]


def _always(context: ssl.SSLContext) -> Callable[[], ssl.SSLContext]:
    return lambda: context


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` (IPv6 with or without brackets). Raises ConnectError."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ConnectError(f"{address!r} is no address of the form host:port", address=address)
    return bare_host(host), int(port)
