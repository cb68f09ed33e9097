"""Hold the settings that a broker shares with its routers, subscribers and publishers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from cometmq.client.popping.simple_consumer import SimpleConsumer
from cometmq.client.producing.producer import Producer
from cometmq.errors import IllegalArgumentError
from cometmq.faststream.producer import RocketMQProducer

Watch: TypeAlias = Callable[[Producer | SimpleConsumer], object]


def check_ack_policy(policy: object) -> None:
    """Raise IllegalArgumentError if `policy` is not an AckPolicy.

    FastStream compares policies by identity: with "manual" in place of AckPolicy.MANUAL nothing settles a message.
    """
    if policy is not EMPTY and not isinstance(policy, AckPolicy):
        raise IllegalArgumentError(
            f"ack_policy is {policy!r:.100}; use a member of faststream.AckPolicy: "
            + ", ".join(each.name for each in AckPolicy)
        )


@dataclass(kw_only=True)
class RocketMQBrokerConfig(BrokerConfig):
    """Adds the options of the broker's clients, and the function that it calls with each client before its start."""

    producer: RocketMQProducer = field(default_factory=lambda: RocketMQProducer(None, None))
    client_options: dict[str, Any] = field(default_factory=dict)
    watch: Watch | None = None
    # The topic of the started subscriber in each group.
    topics_by_group: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ack_policy(self.ack_policy)
