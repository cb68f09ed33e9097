"""Redrive chosen dead letters, and report what became of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.admin.messages.reading import address_of
from cometmq.errors import CometMQError, IllegalArgumentError, ServersFailedError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import retry_topic
from cometmq.model.reports.keyed_text import TextKey, text_of
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.redrive import REDRIVE_ID

if TYPE_CHECKING:
    from cometmq.admin.messages.room import Messages

# As many as a broker takes in one request.
MAX_LETTERS: Final = 1_000
# Brokers enter messages into their indexes in batches.
_LOOKS: Final = 12
_PAUSE_S: Final = 0.25
_AT_ONCE: Final = 16


class Unsent(TextKey):
    """Lists why a dead letter was not sent again, or why nobody knows whether it was."""

    NO_TOPIC = "the letter does not name its topic ({property})"
    REFUSED = "the broker did not send it: topic {topic} does not take it, or the letter is gone"
    MAYBE = (
        "of {letters} letters that no index has yet the brokers have sent {sent}; look whether topic "
        "{topic} has this one"
    )


@dataclass(frozen=True, slots=True)
class LetterOutcome:
    """Says what became of a dead letter that was to be sent again.

    It went to `topic`, and lies in queue `queue_id` of `broker_name` at `queue_offset`; these three
    are None while no index has it. `fault` says why it was not sent, or why nobody knows whether it
    was.
    """

    letter: MessageExt
    topic: str
    broker_name: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    fault: str = ""


async def redrive_each(
    messages: Messages,
    redrive_id: str,
    group: str,
    letters: Sequence[MessageExt],
    only_group: bool,
) -> list[LetterOutcome]:
    """Carry out `Messages.redrive_letters`."""
    if not 0 < len(letters) <= MAX_LETTERS:
        raise IllegalArgumentError(
            f"{len(letters)} letters are to be sent again; give 1 to {MAX_LETTERS}"
        )
    sent_count, errors = 0, dict[str, CometMQError]()
    try:
        done = await messages.redrive(
            redrive_id,
            group,
            ids=[letter.offset_msg_id for letter in letters],
            only_group=only_group,
        )
        sent_count = sum(each.sent_count for each in done)
    except ServersFailedError as error:
        errors = dict(error.errors)
        reports = (report for report in error.results.values() if report is not None)
        sent_count = sum(report.sent_count for report in reports)
    except CometMQError as error:
        # The only broker has refused: there was no other to ask.
        errors = {address_of(letter.offset_msg_id): error for letter in letters}
    sent = [letter for letter in letters if address_of(letter.offset_msg_id) not in errors]
    outcomes = {
        id(letter): outcome
        for letter, outcome in [
            *await _of_refused(messages, letters, errors, only_group),
            *await _of_sent(messages, redrive_id, group, sent, only_group, sent_count),
        ]
    }
    return [outcomes[id(letter)] for letter in letters]


async def _of_refused(
    messages: Messages,
    letters: Sequence[MessageExt],
    errors: Mapping[str, CometMQError],
    only_group: bool,
) -> list[tuple[MessageExt, LetterOutcome]]:
    """Send letters of brokers that know no redrive, one by one; the others keep their errors."""
    found = []
    for letter in letters:
        error = errors.get(address_of(letter.offset_msg_id))
        if error is None:
            continue
        topic = letter.properties.get(p.RETRY_TOPIC, "")
        outcome = LetterOutcome(letter, topic, fault=text_of(error))
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and not only_group:
            try:
                at = await messages.resend_letter(letter)
            except CometMQError as refusal:
                outcome = LetterOutcome(letter, topic, fault=text_of(refusal))
            else:
                queue = at.queue
                outcome = LetterOutcome(
                    letter, topic, queue.broker_name, queue.queue_id, at.queue_offset
                )
        found.append((letter, outcome))
    return found


async def _of_sent(
    messages: Messages,
    redrive_id: str,
    group: str,
    letters: Sequence[MessageExt],
    only_group: bool,
    sent_count: int,
) -> list[tuple[MessageExt, LetterOutcome]]:
    """Look in the indexes of brokers for the copies of those letters that they say to have sent."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def look(letter: MessageExt, topic: str) -> LetterOutcome | None:
        async with turns:
            try:
                found = await messages.by_unique_id(topic, letter.msg_id)
            except CometMQError:
                return None  # that it cannot be found now does not mean that it was not sent
        for copy in found:
            if copy.properties.get(REDRIVE_ID) == redrive_id and _is_made_of(copy, letter):
                place = copy.broker_name, copy.queue_id, copy.queue_offset
                return LetterOutcome(letter, topic, *place)
        return None

    outcomes: dict[int, LetterOutcome] = {}
    topics = {
        id(letter): retry_topic(group) if only_group else letter.properties.get(p.RETRY_TOPIC, "")
        for letter in letters
    }
    left = [letter for letter in letters if topics[id(letter)]]
    for _ in range(_LOOKS):
        if len(outcomes) >= sent_count:
            break
        looked = await asyncio.gather(*(look(letter, topics[id(letter)]) for letter in left))
        outcomes |= {id(each.letter): each for each in looked if each is not None}
        left = [letter for letter in left if id(letter) not in outcomes]
        if len(outcomes) < sent_count:
            await asyncio.sleep(_PAUSE_S)
    # This many of the letters that were not found were sent all the same.
    hidden_count = sent_count - len(outcomes)
    for letter in letters:
        if id(letter) not in outcomes:
            topic = topics[id(letter)]
            fault = _fault(topic, hidden_count, len(left))
            outcomes[id(letter)] = LetterOutcome(letter, topic, fault=fault)
    return [(letter, outcomes[id(letter)]) for letter in letters]


def _is_made_of(copy: MessageExt, letter: MessageExt) -> bool:
    """Say whether a redrive made `copy` of this letter. Its broker noted there where the letter lies.

    Their ids do not show it: letters that a Java broker wrote of messages of one batch share the
    batch's id (docs/internals/message-ids.md).
    """
    place = parse_offset_id(letter.offset_msg_id).commit_log_offset
    is_here = letter.broker_name in ("", copy.broker_name)
    return is_here and copy.prepared_transaction_offset == place


def _fault(topic: str, hidden_count: int, left_count: int) -> str:
    """Return why a letter that no index has was not sent, nothing if it was.

    Of `left_count` such letters that name their topics the brokers have sent `hidden_count`.
    """
    if not topic:
        return Unsent.NO_TOPIC(property=p.RETRY_TOPIC)
    if hidden_count <= 0:
        return Unsent.REFUSED(topic=topic)
    if hidden_count < left_count:
        return Unsent.MAYBE(letters=left_count, sent=hidden_count, topic=topic)
    return ""
