"""Show how far delayed messages are delivered: codes 45, 60 and 61 (Java: AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.state import DelayState, encode_timer_check
from cometmq.broker.refusal import Refused
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import TimerMetricsSerializeWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers


class DelayStateHandlers:
    """Serves questions about the progress that `capture` returns. For the loop's thread only."""

    def __init__(self, config: BrokerConfig, capture: Callable[[], DelayState]) -> None:
        self._config = config
        self._capture = capture

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.GET_ALL_DELAY_OFFSET, self.delay_offsets)
        handlers.register(requests.GET_TIMER_CHECK_POINT, self.timer_check)
        handlers.register(requests.GET_TIMER_METRICS, self.timer_metrics)

    def delay_offsets(self, _connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return the next queue offset to deliver of each level that was ever used.

        The entries of our own are for slaves, as in the file; Java passes over them.
        """
        return response(ResponseCode.SUCCESS, body=encode_body(self._capture()))

    def timer_check(self, _connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return the progress of timed messages, as Java's file config/timercheck begins."""
        if not self._config.timer_wheel_enable:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "The checkpoint is null: timerWheelEnable is false; set it in the broker's "
                "configuration and restart the broker",
            )
        body = encode_timer_check(self._capture(), self._config.timer_precision_ms)
        return response(ResponseCode.SUCCESS, body=body)

    def timer_metrics(self, _connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return an empty table, for slaves of RocketMQ 5.5: timed messages are not counted by topic.

        After a refusal such a slave would skip everything that it copies after this table.
        """
        return response(ResponseCode.SUCCESS, body=encode_body(TimerMetricsSerializeWrapper()))
