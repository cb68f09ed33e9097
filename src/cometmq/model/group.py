"""Define a consumer group's configuration on one broker (Java: SubscriptionGroupConfig)."""

from __future__ import annotations

from typing import Any

import msgspec

from cometmq.model.java.enums import RETRY_POLICIES, enum_name
from cometmq.model.java.ranges import Int32, Int64


def _default_retry_policy() -> dict[str, Any]:
    return {"type": "CUSTOMIZED"}


class SubscriptionGroupConfig(msgspec.Struct, rename="camel"):
    group_name: str = ""
    attributes: dict[str, str] = {}
    broker_id: Int64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: Int32 = 15
    group_retry_policy: dict[str, Any] = msgspec.field(default_factory=_default_retry_policy)
    group_sys_flag: Int32 = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    subscription_data_set: list[dict[str, Any]] | None = None
    which_broker_when_consume_slowly: Int64 = 1

    def __post_init__(self) -> None:
        kind = self.group_retry_policy.get("type")
        if type(kind) is int:
            name = enum_name("type of groupRetryPolicy", kind, RETRY_POLICIES)
            self.group_retry_policy = {**self.group_retry_policy, "type": name}
