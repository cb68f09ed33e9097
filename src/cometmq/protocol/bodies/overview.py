"""Define the bodies in which a broker reports to operators on itself as a whole, and on the contents of
its disk (Java: `remoting.protocol.body`).
"""

from __future__ import annotations

import msgspec

from cometmq.model.java.enums import MESSAGE_REQUEST_MODES, EnumName, enum_name
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.bodies.cluster import Body
from cometmq.protocol.header import Int32, Int64


class ProducerInfo(Body):
    """One client of a producer group in the answer of code 328. The time is that of its last
    heartbeat in ms; `remote_ip` is the address of its connection after a slash, as Java writes it.
    """

    client_id: str
    language: str
    last_update_timestamp: Int64
    remote_ip: str = msgspec.field(name="remoteIP")
    version: Int32


class ProducerTableInfo(Body):
    """The answer of code 328: the clients by producer group."""

    data: dict[str, list[ProducerInfo]] = msgspec.field(default_factory=dict)


class QueryCorrectionOffsetBody(Body):
    """The answer of code 308: an offset by queue id."""

    correction_offsets: dict[Int32, Int64] = msgspec.field(default_factory=dict)


class GroupForbidden(Body):
    """The answer of code 353: whether a group may read a topic."""

    group: str
    readable: bool
    topic: str


class CheckRocksdbCqWriteResult(Body):
    """The answer of code 354. The status is 0 for a check that found nothing wrong, 1 for one that
    found something, 2 for one that goes on (its result is in the broker's log), 3 for one that
    failed.
    """

    check_result: str | None = None
    check_status: Int32 = 0


class ConsumeQueueData(Body, omit_defaults=True):
    """A unit of a consume queue in the answer of code 321. The last four say what the unit's
    extension holds, if it has one.
    """

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    """The answer of code 321. Without `queue_data` the queue has no unit at that offset."""

    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
    queue_data: list[ConsumeQueueData] | None = None
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class HAConnectionRuntimeInfo(Body):
    """A slave in the answer of code 907, as its master sees it."""

    addr: str
    diff: Int64
    in_sync: bool
    slave_ack_offset: Int64
    transfer_from_where: Int64
    transferred_byte_in_second: Int64


class HAClientRuntimeInfo(Body):
    """A slave in the answer of code 907, as it sees itself."""

    activated: bool = False
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_addr: str | None = None
    master_flush_offset: Int64 = 0
    max_offset: Int64 = 0
    transferred_byte_in_second: Int64 = 0


class HARuntimeInfo(Body):
    """The answer of code 907: of a master, or of a slave."""

    master: bool
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = msgspec.field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = msgspec.field(default_factory=HAClientRuntimeInfo)


class EpochEntry(Body):
    """A term of a master in the answer of code 1007: from where to where it wrote the log."""

    epoch: Int32
    start_offset: Int64
    end_offset: Int64


class EpochEntryCache(Body):
    """The answer of code 1007."""

    broker_id: Int64
    broker_name: str
    cluster_name: str
    max_offset: Int64
    epoch_list: list[EpochEntry] = msgspec.field(default_factory=list)


class SetMessageRequestModeRequestBody(Body):
    """The body of code 401; `mode` is PULL or POP."""

    consumer_group: str
    topic: str
    mode: EnumName = "PULL"
    pop_share_queue_num: Int32 = 0

    def __post_init__(self) -> None:
        self.mode = enum_name("mode", self.mode, MESSAGE_REQUEST_MODES)


class MessageRequestModes(Body):
    """The answer of code 402 and the file messageRequestMode.json: what was chosen, by topic and group."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = (
        msgspec.field(default_factory=dict)
    )
