"""Batches, and what a producer has under way when it is closed, against the Java broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.test_producer_rules import (
    test_batches_keep_their_rules,
    test_close_flushes_one_way_messages,
    test_close_waits_for_what_was_sent_asynchronously,
)
from tests.interop.on_java import MARKS, name, namesrv

if TYPE_CHECKING:
    pass

__all__ = [
    "name",
    "namesrv",
    "test_batches_keep_their_rules",
    "test_close_flushes_one_way_messages",
    "test_close_waits_for_what_was_sent_asynchronously",
]
pytestmark = MARKS
