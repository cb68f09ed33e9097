"""Refuse calls of the service Admin that ask, or would answer, too much."""

from __future__ import annotations

from cometmq.proxy.configuration import config
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError


def check_questions(count: int, what: str, asked: int = 0) -> None:
    """Raise RefusedError if a call that has asked `asked` questions would ask too many with `count` more."""
    most = config.MAX_ADMIN_QUESTIONS
    if asked + count > most:
        raise RefusedError(
            wire.BAD_REQUEST,
            f"with {count} {what} the call asks {asked + count} questions, the limit MAX_ADMIN_QUESTIONS is {most}; "
            "make several calls, each for one group or topic",
            "MAX_ADMIN_QUESTIONS",
        )


def check_items(count: int, what: str) -> None:
    """Raise RefusedError for an answer with too many parts."""
    most = config.MAX_ADMIN_ITEMS
    if count > most:
        raise RefusedError(
            wire.PAYLOAD_TOO_LARGE,
            f"the answer has {count} {what}, the limit MAX_ADMIN_ITEMS is {most}; name a topic, or use cometmq admin",
            "MAX_ADMIN_ITEMS",
        )


def check_answer(size: int, what: str) -> None:
    """Raise RefusedError for an answer of too many bytes, or for reports from which it would be made."""
    most = config.MAX_ADMIN_ANSWER_BYTES
    if size > most:
        raise RefusedError(
            wire.PAYLOAD_TOO_LARGE,
            f"{what} {size} bytes, the limit MAX_ADMIN_ANSWER_BYTES is {most}; ask about fewer topics, groups "
            "or messages, or use cometmq admin",
            "MAX_ADMIN_ANSWER_BYTES",
        )
