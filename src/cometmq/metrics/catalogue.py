"""Declare every metric that the servers expose: the collectors, the reference, and the lint of
dashboards and alert rules all read this table.

Metrics that Java's broker 5.3 has keep Java's names (`rocketmq_…`, RIP-46), types and units. The
others are `cometmq_…`, with the unit in the name. `docs/reference/metrics.md` is generated from
here, by `scripts/metrics_reference.py`.

Longer than 500 lines: it is one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """Says how the values of a metric are to be read; the values are Prometheus' type names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Server(Enum):
    """Says which server exposes a metric; the values are those of the label `node_type`."""

    BROKER = "broker"
    NAMESRV = "namesrv"
    CONSOLE = "console"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Describes one metric. `labels` are those besides BASE_LABELS.

    `java` says whether Java 5.3 has a metric of that name; `differs` how ours differs from it.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    java: bool
    servers: tuple[Server, ...]
    differs: str


# Each sample of `rocketmq_…` and `cometmq_…` has these, as in Java. `node_id` is the broker's name;
# a name server's is its host and port, and its `cluster` is empty.
BASE_LABELS: Final = ("cluster", "node_type", "node_id")

# The value of a label that stands for all topics, groups or queues beyond a limit, summed. No topic
# and no group has a brace in its name.
REST: Final = "{rest}"

# The metrics that prometheus-client itself collects, without BASE_LABELS.
PROCESS_METRICS: Final = (
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
    "python_gc_collections_total",
    "python_gc_objects_collected_total",
    "python_gc_objects_uncollectable_total",
    "python_info",
)

METRICS: Final[dict[str, Metric]] = {}

_BROKER: Final = (Server.BROKER,)
_NAMESRV: Final = (Server.NAMESRV,)
_BOTH: Final = (Server.BROKER, Server.NAMESRV)
_ALL: Final = (*_BOTH, Server.PROXY)
_PROXY: Final = (Server.PROXY,)


def _declare(
    name: str,
    kind: Kind,
    unit: str,
    help: str,  # noqa: A002 - the word of the format
    *labels: str,
    servers: tuple[Server, ...] = _BROKER,
    differs: str = "",
) -> Metric:
    assert name not in METRICS, f"metric {name} is declared twice"
    metric = Metric(
        name=name,
        kind=kind,
        unit=unit,
        labels=labels,
        help=help,
        java=name.startswith("rocketmq_"),
        servers=servers,
        differs=differs,
    )
    METRICS[name] = metric
    return metric


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# -- the server --

BUILD_INFO: Final = _declare(
    "cometmq_build_info", _G, "", "Always 1; the labels say which build runs.",
    "version", "python_version", "compiled", servers=_ALL,
)  # fmt: skip
READY: Final = _declare(
    "cometmq_ready", _G, "", "1 while the server does its work, 0 while /ready says why not.",
    servers=_ALL,
)  # fmt: skip
UPTIME: Final = _declare(
    "cometmq_uptime_seconds", _G, "seconds", "Time since the server was started.", servers=_ALL
)
CONNECTIONS: Final = _declare(
    "cometmq_connections", _G, "connections", "Open connections.", servers=_ALL
)
BYTES_IN_FLIGHT: Final = _declare(
    "cometmq_in_flight_bytes", _G, "bytes",
    "Bytes that all connections hold of unfinished frames, waiting requests and unread answers.",
    servers=_BOTH,
)  # fmt: skip
BYTES_IN_FLIGHT_LIMIT: Final = _declare(
    "cometmq_in_flight_limit_bytes", _G, "bytes", "The limit of these bytes, maxBytesInFlight.",
    servers=_BOTH,
)  # fmt: skip
TLS_CERTIFICATE_LEFT: Final = _declare(
    "cometmq_tls_certificate_expires_in_seconds", _G, "seconds",
    "Time until the server's certificate expires, 0 after that. Only where TLS is served.",
    servers=_ALL,
)  # fmt: skip
TLS_RELOAD_FAILED: Final = _declare(
    "cometmq_tls_reload_failed", _G, "state",
    "1 while the certificate files that lie there cannot be used, so that the last good ones are in "
    "force.", servers=_ALL,
)  # fmt: skip
TLS_HANDSHAKES: Final = _declare(
    "cometmq_tls_handshakes_total", _C, "handshakes",
    "TLS handshakes that ended: completed, failed, timed_out, crowded_out by others that waited for "
    "a place; plain_refused are connections without TLS where it is enforced.", "outcome",
    servers=_ALL,
)  # fmt: skip
TLS_HANDSHAKES_WAITING: Final = _declare(
    "cometmq_tls_connections_unserved", _G, "connections",
    "Connections that were accepted and are not served yet: silent ones, and those whose handshake "
    "waits or is under way.", servers=_ALL,
)  # fmt: skip
LOOP_DELAY: Final = _declare(
    "cometmq_loop_delay_seconds", _H, "seconds",
    "How late the event loop was with a timer, one sample a second. Requests wait as long.",
    servers=_ALL,
)  # fmt: skip
RPC_LATENCY: Final = _declare(
    "rocketmq_rpc_latency", _H, "milliseconds",
    "Time in which requests were served, by code. Sends and pulls have histograms of their own.",
    "protocol_type", "request_code", servers=_BOTH,
    differs="no sends and no pulls; no labels response_code, is_long_polling and result; "
    "other buckets",
)  # fmt: skip
REFUSED_REQUESTS: Final = _declare(
    "cometmq_refused_requests_total", _C, "requests",
    "Requests answered by an error, by the code of the request and of the answer.",
    "request_code", "response_code", servers=_BOTH,
)  # fmt: skip
LIMIT_HITS: Final = _declare(
    "cometmq_limit_hits_total", _C, "hits",
    "How often a limit refused, closed or put off something, by the name of the limit; 0 for a "
    "limit that was never reached. [Limits](limits.md) explains each.",
    "limit", servers=(*_ALL, Server.CONSOLE),
)  # fmt: skip
SCRAPE_DURATION: Final = _declare(
    "cometmq_scrape_duration_seconds", _G, "seconds",
    "How long it took to put the last scrape together, the loop's other work included.",
    servers=_ALL,
)  # fmt: skip
SCRAPE_LONGEST_SLICE: Final = _declare(
    "cometmq_scrape_longest_slice_seconds", _G, "seconds",
    "The longest time for which the last scrape held the loop without a pause.", servers=_ALL,
)  # fmt: skip
SCRAPES: Final = _declare(
    "cometmq_scrapes_total", _C, "scrapes",
    "Scrapes that were put together; scrapers that ask at once share one.", servers=_ALL,
)  # fmt: skip
LEFT_OUT: Final = _declare(
    "cometmq_metrics_left_out", _G, "",
    "How many topics, pairs of a group and a topic, or queues have no series of their own, because "
    "a limit is reached. `what` names the limit's key.",
    "what",
)  # fmt: skip

# -- the proxy --

PROXY_CALLS: Final = _declare(
    "cometmq_proxy_calls_total", _C, "calls",
    "gRPC calls that ended, by their name and that of their Status; a Telemetry stream is one call.",
    "call", "status", servers=_PROXY,
)  # fmt: skip
PROXY_CALLS_OPEN: Final = _declare(
    "cometmq_proxy_calls_open", _G, "calls", "Calls under way, without Telemetry streams.", servers=_PROXY,
)  # fmt: skip
PROXY_STREAMS: Final = _declare(
    "cometmq_proxy_telemetry_streams", _G, "streams", "Open Telemetry streams.", servers=_PROXY,
)  # fmt: skip
PROXY_CLIENTS: Final = _declare(
    "cometmq_proxy_clients", _G, "clients", "Clients whose settings are known.", servers=_PROXY,
)  # fmt: skip
PROXY_WAITING: Final = _declare(
    "cometmq_proxy_waiting_receives", _G, "receives", "Receives that wait for messages.", servers=_PROXY,
)  # fmt: skip
PROXY_RENEWED: Final = _declare(
    "cometmq_proxy_renewed_handles", _G, "messages",
    "Messages that are being consumed and whose invisible time is renewed.", servers=_PROXY,
)  # fmt: skip
PROXY_RENEWALS: Final = _declare(
    "cometmq_proxy_renewals_total", _C, "renewals",
    "Renewals of invisible times: renewed, failed, or given_up after three failures or three hours.",
    "outcome", servers=_PROXY,
)  # fmt: skip

# -- access control --

ACCESS_REFUSED: Final = _declare(
    "cometmq_access_refused_total", _C, "requests", "Requests refused by access control.",
    "reason", servers=_ALL,
)  # fmt: skip
ACCESS_ACCOUNTS: Final = _declare(
    "cometmq_access_accounts", _G, "accounts", "Accounts or users that are known.", servers=_ALL
)
ACCESS_CHANGES: Final = _declare(
    "cometmq_access_changes_total", _C, "changes",
    "How often accounts were read again since the start: the version of the accounts in force.",
    servers=_BOTH,
)  # fmt: skip
ACCESS_DAMAGED_FILES: Final = _declare(
    "cometmq_access_damaged_files", _G, "files",
    "Account files that are damaged; their last good contents stay in force.", servers=_BOTH,
)  # fmt: skip
ACCESS_SIGNERS: Final = _declare(
    "cometmq_access_signers", _G, "signers",
    "Clients whose last requests are remembered, to recognise repeated requests.", servers=_BOTH,
)  # fmt: skip

# -- tables --

BROKER_PERMISSION: Final = _declare(
    "rocketmq_broker_permission", _G, "", "brokerPermission: 4 read, 2 write, 6 both."
)
TOPIC_NUMBER: Final = _declare("rocketmq_topic_number", _G, "topics", "Topics in the table.")
GROUP_NUMBER: Final = _declare(
    "rocketmq_consumer_group_number", _G, "groups", "Consumer groups in the table."
)
PRODUCER_CONNECTIONS: Final = _declare(
    "rocketmq_producer_connections", _G, "clients", "Members of producer groups.",
    "language", "version", "protocol_type",
)  # fmt: skip
CONSUMER_CONNECTIONS: Final = _declare(
    "rocketmq_consumer_connections", _G, "clients", "Members of consumer groups.",
    "consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system",
)  # fmt: skip
PROCESSOR_WATERMARK: Final = _declare(
    "rocketmq_processor_watermark", _G, "requests",
    "Requests that wait: `send` for the disk, `pull` for messages, `filter` for their filter's "
    "turn, `admin` for a long answer's turn.",
    "processor",
    differs="there are no thread pools, so other processors",
)  # fmt: skip

# -- messages in --

MESSAGES_IN: Final = _declare(
    "rocketmq_messages_in_total", _C, "messages",
    "Messages stored, by topic, since the broker's start.", "topic", "is_system",
    differs="no label message_type; counts messages that the broker itself stores in a topic, too",
)  # fmt: skip
THROUGHPUT_IN: Final = _declare(
    "rocketmq_throughput_in_total", _C, "bytes",
    "Bytes of the records stored, by topic, since the broker's start.", "topic", "is_system",
    differs="no label message_type; counts messages that the broker itself stores in a topic, too",
)  # fmt: skip
MESSAGE_SIZE: Final = _declare(
    "rocketmq_message_size", _H, "bytes",
    "Size of message bodies, of one in 64 sends; of each batch the average.",
    "topic", "is_system",
    differs="samples, other buckets, no label message_type; Java takes whole records",
)  # fmt: skip
PUT_LATENCY: Final = _declare(
    "cometmq_put_latency_seconds", _H, "seconds",
    "Time from a send's first look to its answer, which with SYNC_FLUSH waits for the disk; of one "
    "in 64 sends, and of each batch.",
    "topic", "is_system",
)  # fmt: skip
APPENDED: Final = _declare(
    "cometmq_messages_appended_total", _C, "messages",
    "Records appended to the commit log, half messages and the broker's own included.",
)  # fmt: skip
REFUSED_MESSAGES: Final = _declare(
    "cometmq_refused_messages_total", _C, "messages",
    "Messages that the store refused, by cause.", "cause",
)  # fmt: skip
SENT_BACK: Final = _declare(
    "cometmq_sent_back_messages_total", _C, "messages",
    "Messages that a group's members sent back to get them again later.",
    "topic", "consumer_group", "is_system",
)  # fmt: skip
SENT_TO_DLQ: Final = _declare(
    "rocketmq_send_to_dlq_messages_total", _C, "messages",
    "Messages that became dead letters of a group.", "consumer_group", "is_system",
    differs="no label topic",
)  # fmt: skip

# -- messages out --

MESSAGES_OUT: Final = _declare(
    "rocketmq_messages_out_total", _C, "messages",
    "Messages that pulls of a group took of a topic.",
    "topic", "consumer_group", "is_system", "is_retry",
)  # fmt: skip
THROUGHPUT_OUT: Final = _declare(
    "rocketmq_throughput_out_total", _C, "bytes",
    "Bytes of the records that pulls of a group took of a topic.",
    "topic", "consumer_group", "is_system", "is_retry",
)  # fmt: skip
GET_LATENCY: Final = _declare(
    "cometmq_get_latency_seconds", _H, "seconds",
    "Time to find the messages of a pull that brought some.",
    "topic", "consumer_group", "is_system", "is_retry",
)  # fmt: skip
PULLS: Final = _declare(
    "cometmq_pulls_total", _C, "pulls",
    "Looks at queues, by what they brought: `found` or `missed`.", "result",
)  # fmt: skip
HELD_PULLS_LIMIT: Final = _declare(
    "cometmq_held_pulls_limit", _G, "requests",
    "How many pulls may wait for messages (maxHeldPulls); rocketmq_processor_watermark of `pull` "
    "says how many do.",
)  # fmt: skip

# -- lag --

_PAIR: Final = ("consumer_group", "topic", "is_system", "is_retry")
LAG_MESSAGES: Final = _declare(
    "rocketmq_consumer_lag_messages", _G, "messages",
    "Messages of a topic that a group has not committed.", *_PAIR,
)  # fmt: skip
LAG_LATENCY: Final = _declare(
    "rocketmq_consumer_lag_latency", _G, "milliseconds",
    "Age of the oldest message that a group has not committed; 0 without such a message.", *_PAIR,
)  # fmt: skip
INFLIGHT_MESSAGES: Final = _declare(
    "rocketmq_consumer_inflight_messages", _G, "messages",
    "Messages that a group's members were handed and have not committed.", *_PAIR,
)  # fmt: skip
READY_MESSAGES: Final = _declare(
    "rocketmq_consumer_ready_messages", _G, "messages",
    "Messages that wait to be handed to a group's members.", *_PAIR,
)  # fmt: skip
QUEUEING_LATENCY: Final = _declare(
    "rocketmq_consumer_queueing_latency", _G, "milliseconds",
    "Age of the oldest message that waits to be handed to a group's members.", *_PAIR,
)  # fmt: skip
POP_INFLIGHT: Final = _declare(
    "cometmq_pop_inflight_messages", _G, "messages",
    "Messages of a topic that a group has popped and not acknowledged.",
    "consumer_group", "topic", "is_system",
)  # fmt: skip
POP_OLDEST_AGE: Final = _declare(
    "cometmq_pop_oldest_age_seconds", _G, "seconds",
    "Time since the oldest of these messages, in any queue, was popped; 0 without any.",
    "consumer_group", "topic", "is_system",
)  # fmt: skip
POP_RETRIES: Final = _declare(
    "rocketmq_pop_revive_retry_messages_total", _C, "messages",
    "Messages that a group popped and did not acknowledge in time, and that were put to its retry topic, since "
    "the start.", "consumer_group", "topic", "put_status",
)  # fmt: skip
POP_REVIVE_LATE: Final = _declare(
    "cometmq_pop_revive_late_seconds", _G, "seconds",
    "How long the group's message that waits longest has been due to be delivered again; 0 without any.",
    "consumer_group", "topic", "is_system",
)  # fmt: skip
QUEUE_LAG_MESSAGES: Final = _declare(
    "cometmq_consumer_queue_lag_messages", _G, "messages",
    "Messages of a queue that a group has not committed. Queues that are furthest behind have a "
    "series of their own first; the others of a group are summed.",
    "consumer_group", "topic", "queue_id",
)  # fmt: skip
QUEUE_LAG_AGE: Final = _declare(
    "cometmq_consumer_queue_lag_age_seconds", _G, "seconds",
    "Age of the oldest message of a queue that a group has not committed.",
    "consumer_group", "topic", "queue_id",
)  # fmt: skip

# -- transactions and delays --

HALF_MESSAGES: Final = _declare(
    "rocketmq_half_messages", _G, "messages", "Half messages without a verdict.",
    differs="of all topics together",
)  # fmt: skip
COMMIT_MESSAGES: Final = _declare(
    "rocketmq_commit_messages_total", _C, "messages", "Half messages that were committed.",
    differs="of all topics together",
)  # fmt: skip
ROLLBACK_MESSAGES: Final = _declare(
    "rocketmq_rollback_messages_total", _C, "messages", "Half messages that were rolled back.",
    differs="of all topics together",
)  # fmt: skip
TIMING_MESSAGES: Final = _declare(
    "rocketmq_timing_messages", _G, "messages", "Messages that wait for a time of their own.",
    differs="of all topics together",
)  # fmt: skip
TIMER_DEQUEUE_LATENCY: Final = _declare(
    "rocketmq_timer_dequeue_latency", _G, "seconds",
    "How overdue the next timed message is.",
    differs="Java calls its unit milliseconds and gives seconds",
)  # fmt: skip
DELAYED_MESSAGES: Final = _declare(
    "cometmq_delayed_messages", _G, "messages", "Messages that wait, by delay level.", "level"
)
DELAYED_DELIVERED: Final = _declare(
    "cometmq_delayed_delivered_total", _C, "messages",
    "Delayed and timed messages that were delivered.",
)  # fmt: skip

# -- storage --

_STORAGE: Final = ("storage_type", "storage_medium")
STORAGE_SIZE: Final = _declare(
    "rocketmq_storage_size", _G, "bytes", "Bytes from the first to the last record of the log.",
    *_STORAGE, differs="the log alone; Java has all used bytes of the disk",
)  # fmt: skip
FLUSH_BEHIND: Final = _declare(
    "rocketmq_storage_flush_behind_bytes", _G, "bytes",
    "Bytes of the commit log that are not on disk yet.", *_STORAGE,
)  # fmt: skip
DISPATCH_BEHIND: Final = _declare(
    "rocketmq_storage_dispatch_behind_bytes", _G, "bytes",
    "Bytes of the commit log whose messages are not in their queues yet.", *_STORAGE,
)  # fmt: skip
RESERVE_TIME: Final = _declare(
    "rocketmq_storage_message_reserve_time", _G, "milliseconds",
    "Age of the oldest message in the log.", *_STORAGE,
)  # fmt: skip
INDEX_BEHIND: Final = _declare(
    "cometmq_index_behind_bytes", _G, "bytes",
    "Bytes of the commit log whose messages are not in the index yet.",
)  # fmt: skip
FLUSH_DURATION: Final = _declare(
    "cometmq_flush_duration_seconds", _H, "seconds", "How long syncs of the commit log took."
)
SLOWEST_APPEND: Final = _declare(
    "cometmq_slowest_append_seconds", _G, "seconds",
    "The longest time that an append had to wait for a page or a file, since the broker's start.",
)  # fmt: skip
DISK_USED_RATIO: Final = _declare(
    "cometmq_disk_used_ratio", _G, "ratio",
    "Used part of the disk that holds the log or the queues, 0 to 1.", "directory",
)  # fmt: skip
DISK_FREE: Final = _declare(
    "cometmq_disk_free_bytes", _G, "bytes", "Free bytes of the store's disk."
)
MARK_WAIT: Final = _declare(
    "cometmq_store_mark_wait_seconds", _G, "seconds",
    "Time since the expiry of the oldest file kept for a group of cleanFileWaitsForGroups; 0: none.",
)  # fmt: skip
FILES_UNMARKED: Final = _declare(
    "cometmq_store_files_deleted_unmarked_total", _C, "files",
    "Files of the log deleted with messages that waited for a group's mark: disk (too full) or age "
    "(cleanFileWaitMaxHours).", "reason",
)  # fmt: skip
UNITS_REPAIRED: Final = _declare(
    "cometmq_queue_units_repaired_total", _C, "units",
    "Damaged units of consume queues that were repaired from the log.",
)  # fmt: skip
MESSAGES_LOST: Final = _declare(
    "cometmq_messages_found_lost_total", _C, "messages",
    "Messages that readers pass over because their records are damaged.",
)  # fmt: skip

# -- copies on other brokers --

REPLICATION_SLAVES: Final = _declare(
    "cometmq_replication_slaves", _G, "slaves",
    "Slaves that are connected: in_step, or behind by haMaxGapNotInSync bytes or more.", "state",
)  # fmt: skip
REPLICATION_LAG: Final = _declare(
    "cometmq_replication_lag_bytes", _G, "bytes",
    "Bytes of the commit log that a connected slave lacks; of several at one address, of the one "
    "that lacks most.", "slave",
)  # fmt: skip
REPLICATION_SENT: Final = _declare(
    "cometmq_replication_sent_bytes_total", _C, "bytes", "Bytes of the log sent to slaves."
)
REPLICATION_RECEIVED: Final = _declare(
    "cometmq_replication_received_bytes_total", _C, "bytes", "Bytes that a slave got of its master."
)
REPLICATION_CONNECTED: Final = _declare(
    "cometmq_replication_connected",
    _G,
    "state",
    "Whether a slave is connected to its master, 1 or 0.",
)
REPLICATION_DIVERGED: Final = _declare(
    "cometmq_replication_diverged", _G, "state",
    "1 if the log of a slave is no beginning of its master's, so that nothing is copied.",
)  # fmt: skip

# -- the name server --

REGISTERED_BROKERS: Final = _declare(
    "cometmq_namesrv_brokers", _G, "brokers", "Brokers that are registered, slaves included.",
    servers=_NAMESRV,
)  # fmt: skip
ROUTED_TOPICS: Final = _declare(
    "cometmq_namesrv_topics", _G, "topics", "Topics in the route table.", servers=_NAMESRV
)
BROKER_SILENT: Final = _declare(
    "cometmq_namesrv_longest_silence_seconds", _G, "seconds",
    "Time since the broker that has been silent for longest was last heard of.", servers=_NAMESRV,
)  # fmt: skip
