"""Judge a proxy from a client's side: whether it can be reached, plain text or TLS, answers, clock. Change nothing."""

from __future__ import annotations

import asyncio
import hmac
import ssl
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from cometmq.model.reports.finding import Finding, error, ok, warning
from cometmq.proxy.access.gate import ALGORITHM
from cometmq.proxy.calls import MESSAGING, TIME_HEADER, VERSION_HEADER
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.remoting.client import split_address
from cometmq.remoting.credentials import Credentials
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.tls.contexts import Tls, handshake_fault

# A topic that hardly exists: "not found" is an answer of a proxy, too.
_NO_TOPIC: Final = "cometmq-doctor"
_SKEW_WARNING_MS: Final = 1_000
_SKEW_ERROR_MS: Final = 30_000
_SOON_DAYS: Final = 14
_DAY_S: Final = 86_400
# With these a proxy has looked for the topic.
_LOOKED: Final = (wire.OK, wire.TOPIC_NOT_FOUND)


class _Answer(NamedTuple):
    """Holds an answer to QueryRoute, its metadata, and the times before and after it by the own clock, in ms."""

    route: Any
    metadata: dict[str, str]
    asked_ms: int
    answered_ms: int


class EndpointCheckup:
    """Asks one endpoint of gRPC clients. `timeout_s` bounds each question.

    With `credentials` the call is signed. `topic` is a topic that its user wants to use; `tls` names the
    certificates to trust and to show, and does not keep the check from asking in plain text, too.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        topic: str | None = None,
        timeout_s: float = 3.0,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        network: Network = TCP_NETWORK,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host, self._port = split_address(endpoint)
        self._name = f"endpoint {join_address(self._host, self._port)}"
        self._topic = topic
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._tls = tls or Tls()
        self._network = network
        self._clock = clock

    async def check(self) -> list[Finding]:
        """Return the findings, reachability first."""
        check = f"{self._name}: reachable"
        began = self._clock.monotonic()
        try:
            await self._connect(None)
        except TimeoutError:
            return [
                error(
                    check,
                    f"no connection within {self._timeout_s:g} s",
                    "check that the host is right and that firewalls let this port through",
                )
            ]
        except OSError as failure:
            return [
                error(
                    check,
                    failure.strerror or str(failure),
                    "start a proxy there (cometmq proxy -n HOST:9876, or cometmq broker --enable-proxy), "
                    "or correct the endpoint: it is the proxy's port, 8081 by default, not that of a name "
                    "server or broker",
                )
            ]
        took_ms = (self._clock.monotonic() - began) * 1000
        findings = [ok(check, f"connected in {took_ms:.0f} ms")]
        has_tls, tls_finding = await self._handshake()
        plain = await self._ask(None)
        answer: _Answer | Finding = plain
        if isinstance(plain, _Answer):
            findings.append(ok(f"{self._name}: plain text", "served"))
        elif has_tls:
            answer = await self._ask(self._tls)
            if isinstance(answer, _Answer):
                findings.append(ok(f"{self._name}: plain text", "refused: clients need TLS"))
        if tls_finding is not None:
            findings.append(tls_finding)
        elif isinstance(answer, _Answer):
            findings.append(
                ok(
                    f"{self._name}: TLS",
                    "not served: Java, Go, C++ and C# clients need their setting for plain text "
                    "(docs/proxy.md)",
                )
            )
        if isinstance(answer, Finding):
            return [*findings, answer]
        return [*findings, *await self._judge(answer)]

    # -- connections --

    async def _connect(self, tls: ssl.SSLContext | None) -> ssl.SSLObject | None:
        """Connect, and return the TLS side of the connection. Raises OSError and TimeoutError."""
        async with asyncio.timeout(self._timeout_s):
            made = await self._network.connect(_Silent, self._host, self._port, tls=tls)
        transport = made.transport
        found: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        transport.abort()
        return found

    async def _handshake(self) -> tuple[bool, Finding | None]:
        """Return the finding about TLS at the port; None if the port does not serve TLS."""
        check = f"{self._name}: TLS"
        anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
        anything.set_alpn_protocols(["h2"])
        try:
            side = await self._connect(anything)
        except OSError:  # TimeoutError is one
            return False, None
        if side is not None and side.selected_alpn_protocol() != "h2":
            return True, error(
                check,
                "served, but not HTTP/2 (ALPN h2)",
                "point clients to the proxy itself, or have the balancer before it pass h2 on",
            )
        judging = ssl.create_default_context(cafile=self._tls.ca_file)
        judging.set_alpn_protocols(["h2"])
        try:
            side = await self._connect(judging)
        except OSError as failure:
            return True, warning(
                check,
                f"served; here {handshake_fault(failure)}",
                "Java, Go, C++ and C# clients take any certificate. Python, Node and Rust check it: "
                "give them, and doctor by --caFile, the certificate that signed it, and name the "
                "endpoint as the certificate does",
            )
        certificate: Any = side.getpeercert() if side is not None else {}
        ends_s = ssl.cert_time_to_seconds(certificate["notAfter"])
        days = (ends_s - self._clock.now_ms() / 1000) / _DAY_S
        if days < _SOON_DAYS:
            return True, warning(
                check,
                f"served; its certificate ends in {days:.0f} days",
                "renew it: the proxy takes the new files without a restart",
            )
        return True, ok(
            check, f"served; its certificate is trusted and valid for {days:.0f} more days"
        )

    # -- the call --

    async def _ask(self, tls: Tls | None) -> _Answer | Finding:
        """Ask for a route, in plain text or by TLS. Return the answer, or the reason why there is none."""
        check = f"{self._name}: QueryRoute"
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        target = join_address(self._host, self._port)
        if tls is None:
            channel = grpc.aio.insecure_channel(target, options)
        else:
            trusted = await asyncio.get_running_loop().run_in_executor(None, _read, tls.ca_file)
            channel = grpc.aio.secure_channel(
                target, grpc.ssl_channel_credentials(trusted), options
            )
        request = wire.QueryRouteRequest(
            topic=wire.Resource(name=self._topic or _NO_TOPIC),
            endpoints=wire.Endpoints(
                scheme=wire.DOMAIN_NAME,
                addresses=[wire.Address(host=self._host, port=self._port)],
            ),
        )
        try:
            call = channel.unary_unary(
                f"/{MESSAGING}/QueryRoute",
                request_serializer=wire.QueryRouteRequest.SerializeToString,
                response_deserializer=wire.QueryRouteResponse.FromString,
            )(request, metadata=self._headers(), timeout=self._timeout_s)
            asked_ms = self._clock.now_ms()
            route = await call
            answered_ms = self._clock.now_ms()
            metadata = {key: str(value) for key, value in await call.trailing_metadata()}
            return _Answer(route, metadata, asked_ms, answered_ms)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return error(
                    check,
                    f"no answer within {self._timeout_s:g} s",
                    "look at the proxy's log, and whether it reaches its name servers and brokers "
                    "(cometmq doctor -n HOST:9876)",
                )
            return error(
                check,
                f"no proxy answers: {failure.code().name}: {failure.details() or 'no details'}",
                "the endpoint is the port of a proxy, 8081 by default; name servers (9876) and brokers "
                "(10911) speak another protocol",
            )
        finally:
            await channel.close()

    def _headers(self) -> list[tuple[str, str]]:
        headers = [("x-mq-client-id", "cometmq-doctor"), ("x-mq-language", "PYTHON")]
        if self._credentials is not None:
            now_s = self._clock.now_ms() // 1000
            date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
            secret = self._credentials.secret_key.encode()
            signature = hmac.new(secret, date.encode(), "sha1").hexdigest().upper()
            authorization = (
                f"{ALGORITHM} Credential={self._credentials.access_key}, "
                f"SignedHeaders=x-mq-date-time, Signature={signature}"
            )
            headers += [("x-mq-date-time", date), ("authorization", authorization)]
        return headers

    # -- what it means --

    async def _judge(self, answer: _Answer) -> list[Finding]:
        status = answer.route.status
        check = f"{self._name}: QueryRoute"
        took_ms = answer.answered_ms - answer.asked_ms
        version = answer.metadata.get(VERSION_HEADER)
        findings = [
            ok(
                f"{self._name}: version",
                f"CometMQ {version}" if version else "not known: Java's proxy does not say it",
            ),
            self._clock_finding(answer),
        ]
        named = f"{_name_of(status.code)}: {status.message}"
        if status.code == wire.OK and self._topic is not None:
            return [*findings, *await self._route(answer.route, took_ms)]
        if status.code == wire.TOPIC_NOT_FOUND and self._topic is not None:
            return [
                *findings,
                error(
                    f"{self._name}: topic {self._topic}",
                    named,
                    f"create it, with the type of its messages: cometmq admin updateTopic -c CLUSTER -t "
                    f"{self._topic} -a +message.type=NORMAL",
                ),
            ]
        if status.code in _LOOKED:
            return [*findings, ok(check, f"answered in {took_ms} ms")]
        if status.code == wire.UNAUTHORIZED:
            remedy = (
                "check the access key and the secret key, and that the clocks agree"
                if self._credentials is not None
                else "give --accessKey and --secretKey of a user; clients need them, too"
            )
            return [*findings, error(check, named, remedy)]
        if status.code == wire.FORBIDDEN:
            if self._topic is None:
                return [*findings, ok(check, f"answered in {took_ms} ms; {named}")]
            remedy = "give the user the right: cometmq admin createAcl, or updateAcl"
            return [*findings, error(f"{self._name}: topic {self._topic}", named, remedy)]
        remedy = "see whether the proxy reaches its name servers and brokers: cometmq doctor -n HOST:9876"
        return [*findings, error(check, named, remedy)]

    def _clock_finding(self, answer: _Answer) -> Finding:
        check = f"{self._name}: clock"
        text = answer.metadata.get(TIME_HEADER, "")
        if not text.isdecimal():
            return ok(check, "not known: this proxy does not say its time")
        unsure_ms = (answer.answered_ms - answer.asked_ms) / 2
        skew_ms = int(text) - (answer.asked_ms + answer.answered_ms) / 2
        said = f"{abs(skew_ms) / 1000:.1f} s {'ahead' if skew_ms > 0 else 'behind'} (±{unsure_ms / 1000:.1f} s)"
        if abs(skew_ms) - unsure_ms <= _SKEW_WARNING_MS:
            return ok(check, said)
        judged = error if abs(skew_ms) - unsure_ms > _SKEW_ERROR_MS else warning
        return judged(check, said, "synchronise the clocks of both machines (chrony, ntpd)")

    async def _route(self, route: Any, took_ms: int) -> list[Finding]:
        """Judge the route of the user's topic, and try to reach the endpoints that it names."""
        queues = route.message_queues
        brokers = sorted({queue.broker.name for queue in queues})
        kinds = sorted(
            {wire.MessageType.Name(kind) for queue in queues for kind in queue.accept_message_types}
        )
        check = f"{self._name}: topic {self._topic}"
        findings = [
            ok(
                check,
                f"{len(queues)} queues at {', '.join(brokers)}, for {', '.join(kinds) or 'no'} messages; "
                f"answered in {took_ms} ms",
            )
        ]
        named = {
            (address.host, address.port)
            for queue in queues
            for address in queue.broker.endpoints.addresses
        } - {(self._host, self._port)}
        for host, port in sorted(named):
            other = EndpointCheckup(
                join_address(host, port), timeout_s=self._timeout_s, network=self._network
            )
            try:
                await other._connect(None)
            except OSError as failure:
                findings.append(
                    error(
                        f"{check}: {join_address(host, port)}",
                        f"the route sends clients there, and they cannot reach it: {failure or 'no answer'}",
                        "set brokerIP1 of that broker to an address that clients reach (docs/addresses.md)",
                    )
                )
        return findings


class _Silent(asyncio.Protocol):
    """Says nothing on its connection."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream"
        self.transport = transport


def _read(file: str | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()


def _name_of(code: int) -> str:
    return wire.Code.Name(code) if code in wire.Code.values() else str(code)
