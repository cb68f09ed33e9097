"""List the producers of a broker for operators: code 328 (Java: AdminBrokerProcessor,
ProducerManager).
"""

from __future__ import annotations

from cometmq.broker.groups.clients import Member
from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.parts import Parts
from cometmq.protocol import requests
from cometmq.protocol.bodies.overview import ProducerInfo
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers


class Overviews:
    """Serves questions about a broker as a whole. For the loop's thread only."""

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._clients = parts.clients
        self._long_answers = parts.long_answers

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.GET_ALL_PRODUCER_INFO, self.producers)

    async def producers(self, connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return the members of all producer groups."""
        async with self._long_answers.turn(connection):
            remedy = "ask for the producers group by group, code 204"
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            for group in self._clients.producer_groups():
                members = self._clients.producers(group)
                if members:  # left meanwhile
                    await answer.add(group, [self._info(member) for member in members])
            body = await answer.body(b'{"data":{', b"}}")
        return response(ResponseCode.SUCCESS, body=body)

    def _info(self, member: Member) -> ProducerInfo:
        silent_ms = int((self._clock.monotonic() - member.seen_s) * 1000)
        return ProducerInfo(
            member.client_id,
            member.language,
            self._clock.now_ms() - silent_ms,
            f"/{member.connection.peer}",
            member.version,
        )
