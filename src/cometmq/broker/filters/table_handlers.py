"""Give slaves the table of consumers' expressions: code 30002, which only CometMQ knows."""

from __future__ import annotations

from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.parts import Parts
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers


class FilterTableHandlers:
    """Serves the table of the expressions. For the loop's thread only."""

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._manager = parts.filters.manager
        self._long_answers = parts.long_answers

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.GET_ALL_CONSUMER_FILTERS, self.all_filters)

    async def all_filters(self, connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return what the file consumerFilter.json would have now."""
        async with self._long_answers.turn(connection):
            remedy = "slaves learn expressions from heartbeats, too"
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            for topic, data in list(self._manager.table().filter_data_by_topic.items()):
                await answer.add(topic, data)
            body = await answer.body(b'{"filterDataByTopic":{', b"}}")
        return response(ResponseCode.SUCCESS, body=body)
