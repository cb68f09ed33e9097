"""Define the headers of requests with which consumers pop messages (Java: PopMessageRequestHeader and others).

Java's codes of these requests do not fit the 16 bits of a binary header, so they come with JSON headers only.
"""

from __future__ import annotations

from cometmq.protocol.header import Header, Int32, Int64

# Where a group without an offset begins.
INIT_MIN = 0
INIT_MAX = 1


class PopMessageRequestHeader(Header):
    """Code 200050. `queue_id` -1 stands for all queues of the broker. `topic` is never a retry topic: those of the
    group are read with it. `born_time` is the client's clock, 0 for the broker's.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    init_mode: Int32
    born_time: Int64 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageResponseHeader(Header):
    """The answer of codes 200050 and 200052; the texts are those of `handle`."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0
    rest_num: Int64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(Header):
    """Code 200051. `topic` is the topic from which the message was popped: of one that was delivered again the
    retry topic. `extra_info` is its handle.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None


class PopProgressRequestHeader(Header):
    """Code 30005, which only CometMQ's brokers know. An empty `topic` stands for all that the group pops. With
    `offset` the answer has only the state of that message of a queue; the queue may be of a retry topic.
    """

    consumer_group: str
    topic: str = ""
    queue_id: Int32 = -1
    offset: Int64 = -1


class ChangeInvisibleTimeRequestHeader(Header):
    """Code 200053. The message stays hidden for `invisible_time` ms from now on.

    With `suspend` (5.5) Java's broker does not count the delivery that follows. With `keep_handle` CometMQ's broker
    still accepts the handle of the request afterwards; Java's does not know the field, and makes a new handle.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool | None = None
    keep_handle: bool | None = None


class ChangeInvisibleTimeResponseHeader(Header):
    """The fields from which the message's new handle is made."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0


class PeekMessageRequestHeader(Header):
    """Code 200052."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class NotificationRequestHeader(Header):
    """Code 200054: is there anything to pop? The fields are those of a pop."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None


class NotificationResponseHeader(Header):
    """`polling_full` says that the question could not wait, because too many do."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfoRequestHeader(Header):
    """Code 200055: how many pops of a group wait at a queue?"""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header):
    polling_num: Int32
