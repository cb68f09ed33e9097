"""Declare every limit of the proxy: its `/metrics`, the reference and the tests read this table.

A limit has the name of its key in rmq-proxy.json, or that of the constant that holds it. Limits of
brokers and name servers are in `cometmq.metrics.limits`, and some have the same name there.
`tests/integration/test_proxy_limits.py` hits every limit.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cometmq.metrics.catalogue import Server
from cometmq.metrics.limits import LIMITS, Limit, add_limit

PROXY_LIMITS: Final[dict[str, Limit]] = {}

_BUSY: Final = "TOO_MANY_REQUESTS"
_CLOSED: Final = "the connection is closed"


_declare = partial(add_limit, PROXY_LIMITS, servers=(Server.PROXY,))


# -- connections --

_declare(
    "maxConnections", "connections", "Open connections in all.",
    "the new one takes the place of one that never sent anything, or is closed; the log has the reason",
    "a client has one connection for each endpoint",
)  # fmt: skip
_declare(
    "maxConnectionsPerAddress", "connections",
    "Open connections from one IP address, of IPv6 from one /64, also from this machine; 0 is no limit.",
    "the new one is closed, and the log has the reason",
    "more than 10,000 clients behind one address of a NAT are rare: set more, or 0, there",
)  # fmt: skip
_declare(
    "RLIMIT_NOFILE", "descriptors",
    "Open files and connections of the process (`ulimit -n`, LimitNOFILE); a connection has three.",
    "as maxConnections", "20,000 connections need 65,536",
)  # fmt: skip
_declare(
    "SILENT_TIMEOUT_S", "seconds",
    "Time in which a new connection sends its first byte, or a balancer in haproxyFrom its header.", _CLOSED,
    "clients connect when they have something to ask", at="proxy.configuration.front_config", slows=True,
)  # fmt: skip
_declare(
    "UNREAD_TIMEOUT_S", "seconds", "Time in which a client does not read what waits for it.", _CLOSED,
    "clients read all the time", at="proxy.configuration.front_config",
)  # fmt: skip
_declare(
    "MAX_UNSENT_BYTES", "bytes", "Answers that wait for clients that read slowly, of all connections.",
    "those that hold most are closed", "answers are read in moments", at="proxy.configuration.front_config",
)  # fmt: skip
_declare(
    "MAX_REQUEST_BYTES", "bytes",
    "Requests that have not arrived whole, of all connections; and requests that are being served.",
    "the connections that hold most are closed; TOO_MANY_REQUESTS",
    "64 clients send 4 MiB each at the same moment", at="proxy.configuration.front_config",
)  # fmt: skip
_declare(
    "MAX_CANCELS_PER_SECOND", "calls",
    "Calls that the clients of one IP address, of IPv6 of one /64, cancel a second; twice as many at once.",
    _CLOSED, "clients cancel the calls under way when they stop, and those whose deadline is over",
    at="proxy.configuration.front_config",
)  # fmt: skip
_declare(
    "MAX_EMPTY_FRAMES_PER_SECOND", "frames",
    "Frames of HTTP/2 without a part of a request (PING, SETTINGS, WINDOW_UPDATE, …) that the clients of one IP "
    "address, of IPv6 of one /64, send a second; twice as many at once.",
    _CLOSED, "a client sends some for each call", at="proxy.configuration.front_config",
)  # fmt: skip
for _name in (
    "tlsHandshakeTimeoutSeconds",
    "maxTlsHandshakes",
    "maxTlsHandshakesPerSecond",
    "MAX_HTTP_CONNECTIONS",
    "MAX_HEAD_BYTES",
):
    _same = LIMITS[_name]
    _declare(
        _name,
        _same.unit,
        _same.bounds,
        _same.beyond,
        _same.ample,
        at=_same.at.removeprefix("cometmq.").partition(":")[0],
        slows=_same.slows,
    )

# -- access control --

_declare(
    "MAX_NEW_ACCOUNTS_PER_SECOND", "users", "Users that the proxy does not know yet, within a second.",
    _BUSY, "a user is asked for once, and remembered", at="proxy.access.accounts",
)  # fmt: skip
_declare(
    "grpcSignatureMaxAgeSeconds", "seconds", "Age of a signature by its x-mq-date-time; 0 is any.",
    "UNAUTHORIZED", "it is off by default, because most clients write local time with a Z",
)  # fmt: skip

# -- the service Admin --

_declare(
    "MAX_ADMIN_CALLS", "calls", "Calls of the service Admin under way.", _BUSY,
    "an operator makes one at a time", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "ADMIN_CALL_TIMEOUT_S", "seconds", "The time of a call of the service Admin.", "PROXY_TIMEOUT",
    "each broker has 5 s, each member 8 s", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_ADMIN_QUESTIONS", "questions", "Groups, topics and members about which such a call asks, in all.",
    "BAD_REQUEST", "a topic has a few groups, a group a few members", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_ADMIN_ITEMS", "items", "Members, subscriptions or queues in the answer of such a call.",
    "PAYLOAD_TOO_LARGE", "a group has some dozen members", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_REPORT_BYTES", "bytes", "A broker's report for such a call, without messages.",
    "INTERNAL_SERVER_ERROR", "a report about 4,000 queues has 1 MB", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_ADMIN_ANSWER_BYTES", "bytes", "The answer of such a call, and the subscriptions that members report for it.",
    "PAYLOAD_TOO_LARGE; QueryMessage leaves out messages and says so",
    "gRPC clients accept no more by default", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_QUERIED_MESSAGES", "messages", "Messages that a QueryMessage may ask for.", "BAD_REQUEST",
    "brokers find no more in one search", at="proxy.configuration.config",
)  # fmt: skip

# -- clients --

_declare(
    "MAX_CLIENTS", "clients", "Clients whose settings are known.",
    "the Telemetry stream ends with the reason", "a process has some clients", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_STREAMS_PER_CLIENT", "streams", "Open Telemetry streams of one client id.",
    "the new one ends with the reason", "a client has one for each endpoint", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_TOPICS_OF_CLIENT", "topics", "Topics in the settings of a client.",
    "the Telemetry stream ends with the reason", "an application has some dozens", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_WAITING_COMMANDS", "commands", "Commands that wait for a client to read them.",
    "the question is dropped, and the broker asks again", "clients read all the time",
    at="proxy.clients.clients",
)  # fmt: skip
_declare(
    "MAX_REMEMBERED", "topics", "Topics whose transactions the proxy is asked about.",
    "a send to another one gets TOO_MANY_REQUESTS", "clusters have some hundred of them",
    at="proxy.configuration.config",
)  # fmt: skip

# -- calls --

_declare(
    "MAX_CALLS", "calls", "Calls under way, without Telemetry streams.", _BUSY,
    "a client waits for some answers at a time", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_WAITING_RECEIVES", "receives", "Receives that wait for messages.", _BUSY,
    "a consumer has one for each broker and topic", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_RENEWED_HANDLES", "messages", "Messages whose invisible time the proxy renews.",
    "TOO_MANY_REQUESTS; receives without auto_renew are still served",
    "a consumer holds some thousand at most", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_ENTRIES", "entries", "Messages of a send, and entries of an acknowledgement.",
    "MESSAGE_CORRUPTED, BAD_REQUEST", "official clients send one", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "MAX_DETAIL_BYTES", "bytes", "A request without the bodies of its messages.",
    "PAYLOAD_TOO_LARGE; the Telemetry stream ends with the reason",
    "an acknowledgement of 1,024 messages has 200 KB", at="proxy.configuration.config",
)  # fmt: skip
_declare(
    "maxMessageSize", "bytes", "The body of a message, unpacked.", "MESSAGE_BODY_TOO_LARGE",
    "it is Java's own default",
)  # fmt: skip
_declare(
    "userPropertyMaxNum", "properties", "Properties that a client gives a message.",
    "MESSAGE_PROPERTIES_TOO_LARGE", "it is Java's own default",
)  # fmt: skip
_declare(
    "maxUserPropertySize", "bytes", "Properties, tag and keys of a message.",
    "MESSAGE_PROPERTIES_TOO_LARGE", "it is Java's own default",
)  # fmt: skip
_declare(
    "maxMessageGroupSize", "characters", "The message group of a FIFO message.",
    "ILLEGAL_MESSAGE_GROUP", "it is Java's own default",
)  # fmt: skip
_declare(
    "maxDelayTimeMills", "ms", "The time until a delayed message is delivered.",
    "ILLEGAL_DELIVERY_TIME", "it is Java's own default",
)  # fmt: skip
_declare(
    "maxTransactionRecoverySecond", "seconds", "The time until a transaction is first asked about.",
    "BAD_REQUEST", "it is Java's own default",
)  # fmt: skip
