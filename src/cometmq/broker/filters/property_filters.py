"""Serve selection by properties: take in heartbeats, answer code 46, write consumerFilter.json.

Java: ClientManageProcessor.checkClientConfig, DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.filters.consumer_filters import (
    ConsumerFilterManager,
    ConsumerFilterTable,
    compile_expression,
)
from cometmq.broker.filters.predicates import FilterPredicates, by_class
from cometmq.broker.groups.clients import ClientManager, Member
from cometmq.broker.refusal import Refused
from cometmq.filtering.bloom import BloomFilter
from cometmq.filtering.sql92 import QUICK_LENGTH, compile_steps
from cometmq.filtering.tags import is_tag_type
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import decode_body, pretty_pieces
from cometmq.protocol.header import NoHeader
from cometmq.protocol.limits import check_subscription
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock
from cometmq.runtime.slices import run_slices
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import StateWriter
from cometmq.runtime.tasks import TaskOwner

_SAVE_PERIOD_S: Final = 10.0


class PropertyFilters:
    """The filter data of a broker and its file. For the loop's thread only.

    Raises ConfigError for a file that does not decode.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        file: JsonFile,
        state: StateWriter,
        predicates: FilterPredicates,
    ) -> None:
        self._config = config
        self._predicates = predicates
        self._file = file
        self._state = state
        self.manager = ConsumerFilterManager(
            clock,
            BloomFilter.create(
                config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
            ),
            config.filter_data_clean_time_span,
            file.read(lambda text: decode_body(text.encode(), ConsumerFilterTable)),
        )

    def watch(self, clients: ClientManager, release: Callable[[str], None]) -> None:
        """Take in the subscriptions of heartbeats, and the end of groups.

        `release` answers the pulls that wait on a topic, because some wait with an old expression.
        """
        self.manager.on_replaced.append(release)
        # Save at once: after a crash the old expression must not be used with bit maps of the new
        # one.
        self.manager.on_replaced.append(lambda _topic: self._save_soon())
        clients.on_subscriptions.append(self.manager.register_steps)
        clients.on_members_changed.append(self._members_changed)

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.CHECK_CLIENT_CONFIG, self.check_client)

    def start(self, tasks: TaskOwner) -> None:
        tasks.every(_SAVE_PERIOD_S, self.save, "save-consumer-filters")

    def save(self) -> None:
        """Write the file if anything changed, without the data that has been dead for too long."""
        if self.manager.changed:
            self._save_soon()

    def _save_soon(self) -> None:
        """Write the file at the end of this turn, once for all that a heartbeat replaced."""
        self.manager.changed = False
        # The writer's thread lays the text out.
        self._state.soon(self._file, lambda: pretty_pieces(self.manager.snapshot()))

    def check_client(
        self, connection: Connection, call: Request[NoHeader]
    ) -> RemotingCommand | None:
        """Say whether this broker would serve the subscription. FilterExpressionError has code
        23.
        """
        subscription = requests.CHECK_CLIENT_CONFIG.typed_body(call).subscription_data
        check_subscription(subscription)
        if by_class(subscription):
            self._predicates.find(subscription.sub_string)
        elif not is_tag_type(subscription.expression_type):
            check_property_filter(self._config, subscription.expression_type)
            if len(subscription.sub_string) > QUICK_LENGTH:
                connection.reply_when(call, self._checked(subscription))
                return None
            compile_expression(subscription.sub_string, subscription.expression_type)
        return response(ResponseCode.SUCCESS)

    async def _checked(self, subscription: SubscriptionData) -> RemotingCommand:
        """Answer when a long expression is compiled; others are served in between."""
        await run_slices(compile_steps(subscription.sub_string))
        compile_expression(subscription.sub_string, subscription.expression_type)
        return response(ResponseCode.SUCCESS)

    def _members_changed(self, group: str, members: list[Member]) -> None:
        if not members:
            self.manager.unregister(group)


def check_property_filter(config: BrokerConfig, expression_type: str) -> None:
    """Raise Refused unless the broker is configured to evaluate expressions."""
    if not config.enable_property_filter:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}: "
            "set enablePropertyFilter=true in its configuration, or subscribe by tags",
        )
