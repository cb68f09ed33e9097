"""List and revive messages that nobody consumes: dead letters and abandoned half messages.

Java: MQAdminExt.resumeCheckHalfMessage. For dead letters Java has only its console.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from cometmq.admin.messages.reading import MessageReader, address_of
from cometmq.admin.room import Room
from cometmq.admin.routed import masters_of
from cometmq.model.message import MessageExt
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC, check_group, dlq_topic
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import ResumeCheckHalfMessageRequestHeader
from cometmq.protocol.redrive import (
    NO_END_MS,
    LetterSelection,
    RedriveDeadLettersRequestHeader,
    RedriveReport,
)

# A broker answers a redrive after a second, or later while it is busy with sends.
_REDRIVE_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Redriven:
    """Counts the dead letters that a redrive has sent at one broker.

    Earlier calls with the same redrive id are included. `skipped_count` letters were selected but
    not sent, because their topic no longer exists.
    """

    broker_name: str
    sent_count: int
    skipped_count: int


class UnconsumedMessages(Room):
    """Lists and redrives dead letters, lists and resumes half messages."""

    async def dead_letters(
        self, group: str, *, begin_ms: int = 0, end_ms: int = NO_END_MS
    ) -> AsyncIterator[MessageExt]:
        """Yield the dead letters of `group` that were stored from `begin_ms` to `end_ms`.

        Both times are included, in ms since the epoch. Queues follow each other, and each begins
        with its oldest letter. Letters that are stored during the call are left out.
        """
        check_group(group)
        async for message in MessageReader(self._servers).stored(
            dlq_topic(group), begin_ms, end_ms
        ):
            yield message

    async def redrive(
        self,
        redrive_id: str,
        group: str,
        *,
        ids: Iterable[str] = (),
        keys: Iterable[str] = (),
        begin_ms: int = 0,
        end_ms: int = NO_END_MS,
        only_group: bool = False,
    ) -> list[Redriven]:
        """Send dead letters of `group` to their original topics again.

        Wait until the brokers have the messages on disk, and return one entry for each broker that
        holds dead letters of the group.

        A letter is selected if it fulfils all conditions that are given: `ids` (unique or offset
        ids), `keys`, and the time at which it became a dead letter (`begin_ms` to `end_ms`, in ms
        since the epoch, both included). Without a condition all letters are selected. With
        `only_group` they go to the retry topic of the group, where no other group sees them.

        The caller chooses `redrive_id`. Under one id no letter is sent twice, so after a failure
        repeat the call with the same arguments. The broker refuses the same id with other
        arguments (INVALID_PARAMETER). A Java broker refuses every redrive
        (REQUEST_CODE_NOT_SUPPORTED).
        """
        check_group(group)
        topic = dlq_topic(group)
        route = await self._servers.route(topic)
        masters = masters_of(route, topic)
        header = RedriveDeadLettersRequestHeader(redrive_id, group, only_group)
        selection = LetterSelection(tuple(ids), tuple(keys), begin_ms, end_ms)
        reports = await self._servers.each(
            masters.values(),
            lambda address: self._redrive_at(address, header, selection),
            f"redrive {redrive_id} of group {group}",
            missing=self._servers.missing_of(route),
        )
        return [
            Redriven(name, report.sent_count, report.skipped_count)
            for name, address in masters.items()
            if (report := reports[address]) is not None
        ]

    async def given_up_halves(
        self, *, begin_ms: int = 0, end_ms: int = NO_END_MS
    ) -> AsyncIterator[MessageExt]:
        """Yield the half messages that the brokers gave up from `begin_ms` to `end_ms`.

        A broker gives a half message up when no producer decides on it. Both times are included,
        in ms since the epoch. Queues follow each other, and each begins with its oldest message.

        The properties of a message have its producer group (PGROUP), its topic (REAL_TOPIC) and how
        often the broker asked its producers (TRANSACTION_CHECK_TIMES). A message that was resumed
        stays in the list.
        """
        async for message in MessageReader(self._servers).stored(
            TRANS_CHECK_MAX_TIME_TOPIC, begin_ms, end_ms
        ):
            yield message

    async def resume_half(self, offset_msg_id: str) -> None:
        """Have the broker ask the producers again about a half message.

        `offset_msg_id` is that of a message that the broker gave up (see `given_up_halves`), or of
        one that the broker still asks about; the count of its checks then starts again.

        A message that was given up begins a new transaction with each call: if it is resumed twice
        and both are committed, consumers get it twice. Raises IllegalArgumentError if the text is
        not an offset id, RemoteError if no such message is stored there or its transaction has
        ended. Java: resumeCheckHalfMessage.
        """
        header = ResumeCheckHalfMessageRequestHeader(
            msg_id=offset_msg_id, topic=TRANS_CHECK_MAX_TIME_TOPIC
        )
        await self._servers.ask(
            address_of(offset_msg_id),
            requests.RESUME_CHECK_HALF_MESSAGE,
            header,
            what=f"resuming the half message {offset_msg_id}",
        )

    # Inside

    async def _redrive_at(
        self, address: str, header: RedriveDeadLettersRequestHeader, selection: LetterSelection
    ) -> RedriveReport | None:
        """Repeat the redrive until the broker has finished it, and return the last report.

        Return None if the broker has no dead letters of the group.
        """
        while True:
            answer = await self._servers.ask(
                address,
                requests.REDRIVE_DEAD_LETTERS,
                header,
                selection,
                what=f"redrive {header.redrive_id} of group {header.group}",
                timeout_s=max(_REDRIVE_TIMEOUT_S, self._servers.timeout_s),
                also=(ResponseCode.QUERY_NOT_FOUND,),
            )
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            report = answer.body
            if report.finished:
                return report
