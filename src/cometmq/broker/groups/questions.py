"""Ask clients what operators want to know of them, within bounds.

An account that may consume for a group can be its member and ask about the group, too. So a client that
asks a thousand small questions may also be the member that does not read them, answers them at great
length, or never. Neither the questions nor the answers may fill the memory, or hold up the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from cometmq.broker.groups.clients import Member
from cometmq.broker.long_answer import LongAnswers
from cometmq.broker.refusal import Refused
from cometmq.errors import CometMQError, RequestTimeoutError
from cometmq.logs.loggers import get_logger
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.headers import GetConsumerStatusRequestHeader
from cometmq.protocol.limits import MAX_STATUS_LENGTH, check_limit
from cometmq.remoting.connection import Connection

log = get_logger(__name__)

# Questions that wait for the answers of one connection. A console asks each client once, and a process
# may have some dozen clients of different groups behind its connection.
MAX_QUESTIONS_OF_CONNECTION: Final = 64
STATUS_TIMEOUT_S: Final = 5.0


async def call_in_turn(
    turns: LongAnswers,
    asker: Connection,
    client: Connection,
    command: RemotingCommand,
    timeout_s: float,
) -> RemotingCommand:
    """Send a client a request of perhaps megabytes, and return the answer, whatever its code.

    A request is encoded once the client has read all earlier bytes, and only one request in a turn
    of the loop. All waiting calls learn at once that the client reads. Raises Refused if
    too many wait for a turn, RequestTimeoutError or ConnectionLostError.
    """
    now = asyncio.get_running_loop().time
    until_s = now() + timeout_s
    while True:
        await client.wait_writable(until_s - now())
        async with turns.turn(asker):
            if not client.congested:
                answer = client.call_nowait(command, timeout_s)
                # Before the next one is encoded it has to be known whether the client takes this one.
                await asyncio.sleep(0)
                break
    return await answer


class Questions:
    """Sends questions to clients, and counts those that wait. For the loop's thread only."""

    def __init__(self, turns: LongAnswers) -> None:
        self._turns = turns
        self._waiting: dict[Connection, int] = {}

    async def ask(
        self, asker: Connection, client: Connection, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Send a question, which may carry a message of megabytes; see `call_in_turn`."""
        self._enter(client)
        try:
            return await call_in_turn(self._turns, asker, client, command, timeout_s)
        finally:
            self._leave(client)

    def ask_now(
        self, client: Connection, command: RemotingCommand, timeout_s: float
    ) -> asyncio.Future[RemotingCommand]:
        """Send a short question and return a future of its answer.

        Raises Refused, RequestTimeoutError if the client does not read, or ConnectionLostError.
        """
        if client.congested:
            raise RequestTimeoutError(
                f"{client.peer} does not read what was sent to it before", address=client.peer
            )
        self._enter(client)
        try:
            answer = client.call_nowait(command, timeout_s)
        except BaseException:
            self._leave(client)
            raise
        answer.add_done_callback(partial(self._leave, client))
        return answer

    def _enter(self, client: Connection) -> None:
        count = self._waiting.get(client, 0)
        if count >= MAX_QUESTIONS_OF_CONNECTION:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{count} questions wait for answers of {client.peer} already, the limit "
                f"MAX_QUESTIONS_OF_CONNECTION is {MAX_QUESTIONS_OF_CONNECTION}; wait for its answers "
                "before you ask for more",
                limit="MAX_QUESTIONS_OF_CONNECTION",
            )
        self._waiting[client] = count + 1

    def _leave(self, client: Connection, _answer: object = None) -> None:
        left = self._waiting[client] - 1
        if left:
            self._waiting[client] = left
        else:
            del self._waiting[client]


class Statuses:
    """Collects what the members of a group say of their offsets, at most `most_bytes` in all.

    A member that fails is left out, so that the answers of others count.
    """

    def __init__(self, questions: Questions, most_bytes: int) -> None:
        self.bodies: dict[str, bytes] = {}
        self.is_too_long = False
        self._questions = questions
        self._bytes_left = most_bytes
        self._awaited = 0
        self._all_came: asyncio.Future[None] | None = None
        self._failed = 0
        self._failure = ""

    def ask(
        self, members: Iterable[Member], question: GetConsumerStatusRequestHeader
    ) -> Iterator[None]:
        """Ask the members, one a step."""
        for member in members:
            command = requests.GET_CONSUMER_STATUS_FROM_CLIENT.command(question)
            try:
                answer = self._questions.ask_now(member.connection, command, STATUS_TIMEOUT_S)
            except CometMQError as error:
                self.leave_out(member.client_id, error, member.connection)
            else:
                self._awaited += 1
                answer.add_done_callback(partial(self._came, member))
            yield

    async def all_came(self) -> None:
        """Wait until each member has answered, or failed."""
        if self._awaited:
            self._all_came = asyncio.get_running_loop().create_future()
            await self._all_came

    def leave_out(
        self, client_id: str, error: CometMQError, connection: Connection | None = None
    ) -> None:
        """Go on without a member, and remember the first reason."""
        if connection is not None:
            connection.limit_hits.note(error)
        self._failed += 1
        self._failure = self._failure or f"{client_id:.200}: {error}"

    def report(self) -> None:
        """Log how many members are left out, in one line: they may be thousands."""
        if self._failed:
            log.warning("no status from members", members=self._failed, first=self._failure)

    def _came(self, member: Member, answer: asyncio.Future[RemotingCommand]) -> None:
        self._awaited -= 1
        try:
            self._take(member.client_id, answer.result())
        except CometMQError as error:
            self.leave_out(member.client_id, error, member.connection)
        if not self._awaited and self._all_came is not None and not self._all_came.done():
            self._all_came.set_result(None)

    def _take(self, client_id: str, answer: RemotingCommand) -> None:
        length = len(answer.body)
        if answer.code != ResponseCode.SUCCESS:
            raise CometMQError(f"it answered {answer.code} {answer.remark or '':.200}")
        check_limit(
            "bytes in a status",
            length,
            "MAX_STATUS_LENGTH",
            MAX_STATUS_LENGTH,
            "ask for one topic of fewer queues",
        )
        self._bytes_left -= length
        if self._bytes_left < 0:
            self.is_too_long = True
            self.bodies.clear()
        else:
            self.bodies[client_id] = bytes(answer.body)
