"""Dead letters and half messages that were given up, at the Java broker."""

from __future__ import annotations

import pytest
from tests.integration.client_faces import BlockingFace
from tests.integration.test_messages_admin import (
    Ask,
    ask,
    bury,
    face,
    redrive,
    test_halves_that_were_given_up_are_listed_and_resumed,
    test_letters_are_listed_as_they_lie,
)
from tests.interop.on_java import MARKS, name, namesrv

from cometmq.errors import RemoteError
from cometmq.protocol.codes import ResponseCode

__all__ = [
    "ask",
    "face",
    "name",
    "namesrv",
    "test_halves_that_were_given_up_are_listed_and_resumed",
    "test_letters_are_listed_as_they_lie",
]
pytestmark = MARKS


def test_a_java_broker_says_that_it_knows_no_redrive(
    face: BlockingFace,
    ask: Ask,
    name: str,
) -> None:
    bury(face, ask, name, 1)
    with pytest.raises(RemoteError, match="30001 not supported") as refusal:
        redrive(ask, "r", name)
    assert refusal.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
