"""Declare every limit of the servers: `/metrics`, the reference and the tests all read this table.

A limit has the name of its configuration key, or that of the constant in the code that holds it
(those are in capitals). The same name stands in refusals, in errors (`CometMQError.limit`) and in
the label of `cometmq_limit_hits_total`. `docs/reference/limits.md` is generated from here by
`scripts/limits_reference.py`, and `tests/integration/test_limits.py` hits every limit.

The rules for names of topics and groups are RocketMQ's own and no limits of this table.

Longer than 500 lines: it is one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from cometmq.metrics.catalogue import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Describes one limit.

    `at` is `module:CONSTANT`, and empty for a configuration key. `beyond` says what happens to a
    request or resource that exceeds the limit, `ample` why real use stays below the default. A limit
    that `slows` is reached in regular service, too, so no alert should fire for it.
    """

    name: str
    at: str
    unit: str
    bounds: str
    beyond: str
    ample: str
    servers: tuple[Server, ...]
    slows: bool


LIMITS: Final[dict[str, Limit]] = {}

_BROKER: Final = (Server.BROKER,)
_NAMESRV: Final = (Server.NAMESRV,)
_BOTH: Final = (Server.BROKER, Server.NAMESRV)

# The answers of most limits to a request that exceeds them.
_BUSY: Final = "SYSTEM_BUSY: clients try again"
_ERROR: Final = "SYSTEM_ERROR"
_WRONG: Final = "INVALID_PARAMETER"
_CLOSED: Final = "the connection is closed"
_REPORTED: Final = "the peer gets the reason, and the connection is closed"
_ILLEGAL: Final = "MESSAGE_ILLEGAL"


def add_limit(
    limits: dict[str, Limit],
    name: str,
    unit: str,
    bounds: str,
    beyond: str,
    ample: str,
    *,
    servers: tuple[Server, ...],
    at: str = "",
    slows: bool = False,
) -> None:
    """Declare a limit in the catalogue `limits`. `at` is its module below cometmq, if it is a constant of one."""
    assert name not in limits, f"limit {name} is declared twice"
    limits[name] = Limit(
        name=name,
        at=f"cometmq.{at}:{name}" if at else "",
        unit=unit,
        bounds=bounds,
        beyond=beyond,
        ample=ample,
        servers=servers,
        slows=slows,
    )


_declare = partial(add_limit, LIMITS, servers=_BROKER)


# -- connections --

_declare(
    "maxConnections", "connections", "Open connections in all.",
    "the new one takes the place of one that never sent anything, or gets the reason and is closed",
    "a broker of Java's serves some ten thousand clients at most", servers=_BOTH,
)  # fmt: skip
_declare(
    "maxConnectionsPerAddress", "connections",
    "Open connections from one IP address, of IPv6 from one /64, also from this machine; 0 is no limit.",
    "the new one gets the reason and is closed",
    "more than 20,000 clients behind one address of a NAT or a proxy are rare: set more, or 0, there",
    servers=_BOTH,
)  # fmt: skip
_declare(
    "RLIMIT_NOFILE", "descriptors",
    "Open files and connections of the process (`ulimit -n`, LimitNOFILE); a part is kept for files.",
    "as maxConnections", "`cometmq doctor` warns of fewer than 65,536", servers=_BOTH,
)  # fmt: skip
_declare(
    "serverChannelMaxIdleTimeSeconds", "seconds", "Time without a byte in either direction.",
    _CLOSED, "clients send heartbeats every 30 s, and connect again when they need to",
    servers=_BOTH, slows=True,
)  # fmt: skip
_declare(
    "SILENT_TIMEOUT_S", "seconds", "Time until a new connection sends its first byte.", _CLOSED,
    "clients connect when they have something to ask", at="remoting.server", servers=_BOTH,
    slows=True,
)  # fmt: skip
_declare(
    "unfinishedFrameTimeoutSeconds", "seconds",
    "Time for a frame to arrive; each 16 KiB of it add a second.",
    f"{_BUSY}, then {_CLOSED}", "16 KiB a second is slower than any network in use", servers=_BOTH,
)  # fmt: skip

# -- TLS --

_declare(
    "tlsHandshakeTimeoutSeconds", "seconds",
    "Time from the first byte of a TLS handshake to its end; where TLS is enforced, from the connect.",
    _CLOSED, "a handshake takes two round trips, and the wait for a place", servers=_BOTH,
)  # fmt: skip
_declare(
    "maxTlsHandshakes", "handshakes", "TLS handshakes that are under way at once.",
    "the others wait; one that has lasted for more than a second is closed for them",
    "32 places take 160 handshakes a second from peers 200 ms away", servers=_BOTH, slows=True,
)  # fmt: skip
_declare(
    "maxTlsHandshakesPerSecond", "handshakes", "TLS handshakes that begin within a second.",
    "the others wait, and addresses take turns",
    "a handshake with an RSA key of 2,048 bits takes 0.7 ms of the loop", servers=_BOTH, slows=True,
)  # fmt: skip

# -- bytes --

_declare(
    "com.rocketmq.remoting.frameMaxLength", "bytes", "One frame: header and body.", _REPORTED,
    "it is Java's own default", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_HEADER_LENGTH", "bytes", "The header of a frame.", _REPORTED,
    "the longest headers carry properties: 32,767 bytes, 196,602 if each of them is escaped",
    at="protocol.frame", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_EXT_FIELDS", "fields", "Ext fields of a header, in JSON and in RocketMQ's serialization.",
    _REPORTED, "no header in use has thirty", at="protocol.command", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_BODY_LENGTH", "bytes", "The body of a request; each request has its own, see below.",
    _ERROR, "each is several times what the largest clusters send (docs/internals/limits.md)",
    servers=_BOTH,
)  # fmt: skip
_declare(
    "maxBytesInFlight", "bytes",
    "Unfinished frames, waiting requests and unread answers of all connections.",
    f"the holders of most bytes for longest are cut: {_BUSY}", "answers are read and frames end in moments",
    servers=_BOTH,
)  # fmt: skip
_declare(
    "maxBytesInFlightPerConnection", "bytes",
    "Waiting requests of one connection, of 4 KiB or more each.",
    f"its next requests wait until some are answered; a pull gets {_BUSY}",
    "a producer waits for answers: 64 MiB are 16 of the largest messages", servers=_BOTH,
)  # fmt: skip
_declare(
    "maxWaitingRequestsPerConnection", "requests",
    "Requests of one connection that tasks are about to answer. Sends and pulls take no task.",
    _BUSY, "applications make such calls one by one: heartbeats, queries, sent-back messages",
    servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_UNSENT_BYTES", "bytes", "Answers that one peer has not read.",
    "its next requests wait until it reads", "clients read all the time",
    at="remoting.connection", servers=_BOTH, slows=True,
)  # fmt: skip
_declare(
    "MAX_INFLATED_LENGTH", "bytes", "A compressed registration, once it is unpacked.", _ERROR,
    "a broker with 60,000 topics needs about 4 MB", at="protocol.bodies.registration", servers=_NAMESRV,
)  # fmt: skip

# -- JSON bodies --

_declare(
    "MAX_JSON_DEPTH", "levels", "Nesting of objects and lists in a body.", _ERROR,
    "no body in use has ten", at="protocol.fastjson.dialect", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_DIALECT_REQUEST_LENGTH", "bytes",
    "A body that is not strict JSON, but fastjson's dialect; a heartbeat with references.",
    _ERROR, "only maps by objects are written so: locks, some routes",
    at="protocol.fastjson.dialect", servers=_BOTH,
)  # fmt: skip

# -- requests --

_declare(
    "MAX_REQUEST_TREE_VALUES", "values",
    "Values of a request that has nulls or references.", _ERROR,
    "a policy with 1,000 entries has about 8,000", at="protocol.fastjson.dialect", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_REQUEST_REFERENCES", "references", "References (`$ref`) in a request.", _ERROR,
    "mqadmin sends 1,998 for a policy with 1,000 entries", at="protocol.fastjson.dialect", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_REQUEST_REFERENCED_NODES", "values", "Values that the references of a request repeat.",
    _ERROR, "the actions and addresses of a policy", at="protocol.fastjson.dialect", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_OBJECTS", "objects", "Objects in the JSON of a request that any client may send, counted by their braces.",
    _ERROR, "the largest heartbeat has 5,121", at="protocol.limits", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_GROUPS", "groups", "Producer and consumer groups in a heartbeat, or groups in a list to create.",
    _ERROR, "an application has some dozens, mqadmin sends files of some hundred", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_SUBSCRIPTIONS", "subscriptions", "Subscriptions in a heartbeat.", _ERROR,
    "an application has some dozens, a bridge some thousands", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_SQL_SUBSCRIPTIONS", "subscriptions", "SQL92 subscriptions in a heartbeat.", _ERROR,
    "an application has some", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_TAGS", "tags", "Tags in a subscription.", _ERROR,
    "people write them by hand", at="model.subscription",
)  # fmt: skip
_declare(
    "MAX_TAGS_OF_HEARTBEAT", "tags", "Tags of all subscriptions in a heartbeat.", _ERROR,
    "people write them by hand", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_CLIENT_ID_LENGTH", "characters", "A client id.", _ERROR,
    "Java's have an address, a process id and a time", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_NAME_LENGTH", "characters",
    "The name of a topic, group, broker or address in a request whose names are kept in memory.",
    _ERROR, "RocketMQ's names of topics have 127 characters at most, of groups 120",
    at="protocol.limits", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_LOCKS_AT_ONCE", "queues", "Queues to lock or unlock in a request.", _ERROR,
    "a client asks for its queues of one group at one broker", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_QUEUES_OF_ASSIGNMENT", "queues", "Queues of a topic that a broker divides among its "
    "consumers.",
    _ERROR, "topics have a few hundred; consumers may divide more among themselves",
    at="broker.groups.assignments",
)  # fmt: skip
_declare(
    "MAX_CONFIGS", "topics", "Topics in a list to create.", _ERROR,
    "mqadmin sends files of some hundred", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_LISTED_NAMES", "names", "Topics or groups in a list of a request's header.", _ERROR,
    "tools list some dozen", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_QUEUES_OF_TOPIC", "queues", "Queues of a topic, also of a retry topic.", _WRONG,
    "Java's clients need one pull for each; a topic has 4 to some hundred", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_ATTRIBUTES_LENGTH", "characters", "The attributes of a topic in a request.", _WRONG,
    "RocketMQ knows five attributes", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_STATUS_LENGTH", "bytes", "A client's answer to a broker's question about its offsets.",
    "the client is left out of the answer",
    "one of a member's offsets has 70 bytes for each of its queues", at="protocol.limits",
)  # fmt: skip
_declare(
    "MAX_QUESTIONS_OF_CONNECTION", "questions",
    "Requests of operators that wait for the answers of one client's connection.", _BUSY,
    "a console asks each client once", at="broker.groups.questions",
)  # fmt: skip

# -- messages --

_declare(
    "maxMessageSize", "bytes", "The body of a message, and all of a batch.", _ILLEGAL,
    "it is Java's own default",
)  # fmt: skip
_declare(
    "MAX_PROPERTIES_LENGTH", "bytes", "The properties of a message.", _ILLEGAL,
    "it is the format's: Java's broker refuses more", at="protocol.messages.properties",
)  # fmt: skip
_declare(
    "MAX_PROPERTIES", "properties", "How many properties a message has.", _ILLEGAL,
    "applications set some dozens", at="protocol.messages.properties",
)  # fmt: skip
_declare(
    "MAX_BATCH_MESSAGES", "messages", "Messages in a batch.", _ERROR,
    "a batch of 4 MiB with bodies of 200 bytes has fewer", at="protocol.messages.batch",
)  # fmt: skip
_declare(
    "MAX_FIRST_SENDS", "messages", "Messages that wait until their topic is made.", _BUSY,
    "a topic is made in a moment", at="broker.sends.first_sends",
)  # fmt: skip
_declare(
    "MAX_FIRST_SEND_BYTES", "bytes", "The bodies of these messages.", _BUSY,
    "a topic is made in a moment", at="broker.sends.first_sends",
)  # fmt: skip
_declare(
    "MAX_RETRY_BYTES_BEYOND_PULLS", "bytes",
    "Bytes that a group may store by sending messages back again, beyond those that it "
    "has pulled.", _BUSY,
    "a consumer sends back what it was given, and when this is refused it sends the message itself",
    at="broker.retries.budget",
)  # fmt: skip
_declare(
    "maxUnresolvedTransactions", "messages",
    "Half messages without a verdict; half of them may ask to be asked later than others.", _BUSY,
    "a producer ends its transactions in seconds; a million of them take 400 MB at most",
)  # fmt: skip

# -- topics, groups, members --

_declare(
    "maxTopics", "topics", "Topics of a broker; 0 is no limit. Administrators may make more.",
    _BUSY, "Java's brokers slow down at some ten thousand",
)  # fmt: skip
_declare(
    "maxTopicsMadePerSecond", "topics", "Topics that clients make by using them; 0 is no limit.",
    _BUSY, "ten times as many may be made at once, as by a deployment",
)  # fmt: skip
_declare(
    "maxQueues", "queues", "Queues of all topics; 0 is no limit. Administrators may make more.",
    _BUSY, "200,000 topics with the default of 8 queues have 1.6 million",
)  # fmt: skip
_declare(
    "maxGroups", "groups", "Consumer groups of a broker; 0 is no limit.", _BUSY,
    "Java's clusters have some thousand",
)  # fmt: skip
_declare(
    "maxGroupsMadePerSecond", "groups", "Groups that clients make by using them; 0 is no limit.",
    _BUSY, "ten times as many may be made at once, as by a deployment",
)  # fmt: skip
_declare(
    "MAX_MEMBERS_OF_GROUP", "clients", "Clients that are online in one group.", _BUSY,
    "each gets the list of all others: groups have some hundred", at="broker.groups.clients",
)  # fmt: skip
_declare(
    "MAX_MEMBERSHIPS_OF_CONNECTION", "memberships",
    "Clients times their groups that are online by one connection.", _BUSY,
    "a connection belongs to one client, and its heartbeat has 1,024 groups at most",
    at="broker.groups.clients",
)  # fmt: skip
_declare(
    "MAX_MEMBERSHIPS", "memberships", "Clients times their groups that are online in all.", _BUSY,
    "10,000 clients with 20 groups each are a fifth of it", at="broker.groups.clients",
)  # fmt: skip
_declare(
    "MAX_SUBSCRIPTION_BYTES_OF_CONNECTION", "bytes",
    "Memory of the subscriptions that came by one connection, by estimate.", _BUSY,
    "4,096 subscriptions with a dozen tags each; a heartbeat has no more", at="broker.groups.clients",
)  # fmt: skip
_declare(
    "MAX_SUBSCRIPTION_BYTES", "bytes", "Memory of all subscriptions, by estimate.", _BUSY,
    "10,000 groups that subscribe to 100 topics each", at="broker.groups.clients",
)  # fmt: skip
_declare(
    "maxConsumerOffsets", "offsets", "Offsets that are kept, one for each group and queue.",
    "the group's first offset in a queue is refused: SYSTEM_ERROR",
    "1,000 groups of 1,000 queues; 100 bytes each",
)  # fmt: skip
_declare(
    "MAX_LOCKS_PER_GROUP", "locks", "Queue locks of a group.",
    "the queue is not locked, as if another member had it", "it is a lock for each queue",
    at="broker.groups.queue_locks",
)  # fmt: skip
_declare(
    "MAX_LOCKS", "locks", "Queue locks in all.", "the queue is not locked", "only ordered groups lock",
    at="broker.groups.queue_locks",
)  # fmt: skip
_declare(
    "MAX_LOCKING_GROUPS", "groups", "Groups that hold queue locks.", "the queue is not locked",
    "only ordered groups lock", at="broker.groups.queue_locks",
)  # fmt: skip

# -- pulls and filters --

_declare(
    "maxHeldPulls", "pulls", "Pulls that wait for messages, or for the filters' turn.",
    "the pull is answered at once: PULL_NOT_FOUND, or SYSTEM_BUSY",
    "1,000 clients with 100 queues each",
)  # fmt: skip
_declare(
    "maxHeldPullsPerConnection", "pulls", "Pulls of one connection that wait for messages.",
    "the pull is answered at once: PULL_NOT_FOUND", "a client has one pull for each of its queues",
)  # fmt: skip
_declare(
    "MAX_PULLS_AHEAD", "pulls", "Pulls that wait a second for the heartbeat of their group.",
    "the pull is refused as Java does it: SUBSCRIPTION_NOT_LATEST",
    "only pulls in the moment of a change wait so", at="broker.pulls.waiting",
)  # fmt: skip
_declare(
    "MAX_COLD_PULLS", "pulls", "Pulls that wait until a thread has read old messages from the disk.",
    _BUSY, "a pull waits some milliseconds so", at="broker.pulls.waiting",
)  # fmt: skip
_declare(
    "MAX_COLD_PULLS_OF_CONNECTION", "pulls", "Pulls of one connection that wait for such a read.", _BUSY,
    "a client has one pull for each of its queues", at="broker.pulls.waiting",
)  # fmt: skip
_declare(
    "MAX_FILTER_CHARACTERS", "characters",
    "The expressions of all groups that are kept, each with 1,000 more; those of groups that have left "
    "go first.", "FILTER_DATA_NOT_EXIST", "5,000 expressions of 600 characters",
    at="broker.filters.consumer_filters",
)  # fmt: skip
_declare(
    "MAX_EXPRESSION_LENGTH", "characters", "An SQL92 expression.", "SUBSCRIPTION_PARSE_FAILED",
    "people write them by hand", at="filtering.sql92",
)  # fmt: skip
_declare(
    "MAX_SQL_DEPTH", "levels", "Nesting of an SQL92 expression.", "SUBSCRIPTION_PARSE_FAILED",
    "people write them by hand", at="filtering.sql92_terms",
)  # fmt: skip
_declare(
    "MAX_TERMS", "terms", "Properties and literals in an SQL92 expression.",
    "SUBSCRIPTION_PARSE_FAILED", "people write them by hand", at="filtering.sql92_terms",
)  # fmt: skip
_declare(
    "MAX_PARTS", "parts", "Words and signs in an SQL92 expression.", "SUBSCRIPTION_PARSE_FAILED",
    "people write them by hand", at="filtering.sql92",
)  # fmt: skip
_declare(
    "MAX_PREDICATE_BODY_BYTES", "bytes",
    "A compressed message, once it is unpacked for a named predicate.",
    "the predicate sees the message as damaged", "a message of 4 MiB unpacks to fewer",
    at="broker.filters.predicates",
)  # fmt: skip

# -- administrators' requests --

_declare(
    "MAX_LONG_ANSWERS_OF_CONNECTION", "requests", "Long answers that one connection waits for.",
    _BUSY, "a console asks for all its topics and groups at once", at="broker.long_answer",
)  # fmt: skip
_declare(
    "MAX_LONG_ANSWERS", "requests", "Long answers that all connections wait for.", _BUSY,
    "a broker has some consoles", at="broker.long_answer",
)  # fmt: skip
_declare(
    "MAX_ENTRIES_LOOKED_AT", "entries", "Index entries that a search by key looks at.", _ERROR,
    "a search in a narrower time finds messages further back", at="store.index.index_service",
)  # fmt: skip
_declare(
    "MAX_RECORDS_LOOKED_AT", "messages", "Messages that a search by key compares with the key.", _ERROR,
    "only a client that chooses keys for their hashes gives this many the same hash",
    at="store.index.index_service",
)  # fmt: skip
_declare(
    "MAX_REDRIVES", "redrives", "Redrives that a broker remembers.", _BUSY,
    "a redrive is an operator's act", at="broker.retries.redrive",
)  # fmt: skip
_declare(
    "MAX_SELECTED_CHARACTERS", "characters", "The selections of all these redrives.", _BUSY,
    "a redrive is an operator's act", at="broker.retries.redrive",
)  # fmt: skip
_declare(
    "MAX_SELECTED", "ids", "Message ids, or keys, of a redrive's selection.", _WRONG,
    "more are selected by time or in several redrives", at="broker.retries.redrive_handlers",
)  # fmt: skip

# -- slaves --

_declare(
    "maxHaConnections", "connections", "Slaves that copy from a master.",
    "the new one takes the place of one that never said anything, or is closed",
    "a master has one to three slaves",
)  # fmt: skip

# -- name servers --

_declare(
    "maxBrokers", "brokers", "Registered brokers, masters and slaves; 0 is no limit.", _BUSY,
    "the largest clusters have some hundred", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "maxRoutes", "entries", "Topics times the brokers that have them; 0 is no limit.", _BUSY,
    "100 brokers with 20,000 topics each have two million; 200 bytes each", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_REGISTERED_TOPICS", "topics", "Topics in a registration.", _ERROR,
    "Java's brokers slow down at some ten thousand", at="protocol.limits", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_FILTER_SERVERS", "addresses", "Filter servers in a registration.", _ERROR,
    "RocketMQ 5 has none", at="protocol.limits", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_REGISTERED_VALUES", "values", "JSON values in a registration, by its commas, counted before it is decoded.",
    _ERROR, "a topic has 8, and 10 with three attributes", at="protocol.limits", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_REGISTERED_OBJECTS", "objects", "JSON objects in a registration, by their braces, counted before it is decoded.",
    _ERROR, "a topic has 2, and a static one 4", at="protocol.limits", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_DIALECT_REGISTRATION_LENGTH", "bytes",
    "A registration that is not strict JSON, but fastjson's dialect.", _ERROR,
    "Java's brokers write one so if they have static topics; compressed, 60,000 topics fit",
    at="protocol.bodies.registration", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_ROUTE_QUEUES", "brokers", "Brokers of a topic whose route is set by a request.", _ERROR,
    "the largest clusters have some hundred", at="protocol.limits", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_KV_NAME_LENGTH", "characters", "A namespace or a key of the key-value configuration.",
    _WRONG, "keys are names of topics", at="namesrv.kv_config", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_KV_VALUE_LENGTH", "characters", "A value of the key-value configuration.", _WRONG,
    "values list the brokers of an ordered topic", at="namesrv.kv_config", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_KV_LENGTH", "characters", "An entry of the key-value configuration in all.", _ERROR,
    "values list the brokers of an ordered topic", at="protocol.limits", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_KV_ENTRIES", "entries", "Entries of the key-value configuration.", _WRONG,
    "one for each ordered topic", at="namesrv.kv_config", servers=_NAMESRV,
)  # fmt: skip
_declare(
    "MAX_KV_TABLE_LENGTH", "characters", "All of the key-value configuration.", _WRONG,
    "one for each ordered topic", at="namesrv.kv_config", servers=_NAMESRV,
)  # fmt: skip

# -- pages of monitoring --

_declare(
    "MAX_HTTP_CONNECTIONS", "connections", "Connections that ask for `/metrics`, `/health`, `/ready`.",
    "the oldest one that waits for no answer is closed, or the new one is answered 503",
    "a server has one or two scrapers", at="remoting.http.http_server", servers=_BOTH,
)  # fmt: skip
_declare(
    "MAX_HEAD_BYTES", "bytes", "Request line and headers of such a request.", "431",
    "scrapers send some hundred bytes", at="remoting.http.http_server", servers=_BOTH,
)  # fmt: skip
