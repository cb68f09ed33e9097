"""Changes of attributes: what they set, and what is refused."""

from __future__ import annotations

import pytest

from cometmq.errors import IllegalArgumentError
from cometmq.model.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, changed, parse_changes


def test_changes_set_and_remove() -> None:
    made = changed(TOPIC_ATTRIBUTES, None, parse_changes("+message.type=FIFO,+reserve.time=-1"))
    assert made == {"message.type": "FIFO", "reserve.time": "-1"}
    after = changed(TOPIC_ATTRIBUTES, made, parse_changes("+message.type=DELAY,-reserve.time"))
    assert after == {"message.type": "DELAY"}
    assert made["message.type"] == "FIFO"
    assert changed(TOPIC_ATTRIBUTES, after, parse_changes("")) == after
    assert changed(GROUP_ATTRIBUTES, None, {"+priority.factor": "7"}) == {"priority.factor": "7"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("message.type=FIFO", "neither"),
        ("-message.type=FIFO", "neither"),
        ("+message.type", "neither"),
        ("=", "neither"),
        ("+message.type=FIFO,+message.type=DELAY", "twice"),
    ],
)
def test_a_text_that_is_no_list_of_changes_is_refused(text: str, why: str) -> None:
    with pytest.raises(IllegalArgumentError, match=why):
        parse_changes(text)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"+colour": "red"}, "no attribute 'colour'; there are cleanup.policy, message.type"),
        (
            {"+message.type": "LOUD"},
            "none of DELAY, FIFO, NORMAL, PRIORITY, TRANSACTION, UNSPECIFIED",
        ),
        ({"+message.type": "MIXED"}, "not supported"),
        ({"+queue.type": "BatchCQ"}, "single messages"),
        ({"+cleanup.policy": "COMPACTION"}, "no compaction"),
        ({"+reserve.time": "-2"}, "no number from -1"),
        ({"+reserve.time": "soon"}, "no number from -1"),
        ({"+reserve.time": "9" * 400}, "no number from -1"),
        ({"+reserve.time": "1_000"}, "no number from -1"),
        ({"+reserve.time": " 5"}, "no number from -1"),
        ({f"+{number}": "" for number in range(99)}, "99 attributes are changed"),
        ({"-reserve.time": ""}, "not set"),
        ({"reserve.time": "1"}, "neither"),
        ({"": "1"}, "neither"),
        ({"+reserve.time": "1", "-reserve.time": ""}, "both set and removed"),
    ],
)
@pytest.mark.parametrize("current", [None, {}, {"message.type": "FIFO"}])
def test_a_change_that_cannot_be_is_refused(
    changes: dict[str, str], why: str, current: dict[str, str] | None
) -> None:
    if current is not None and next(iter(changes), "")[1:] in ("queue.type", "cleanup.policy"):
        why = "cannot be changed any more"
    with pytest.raises(IllegalArgumentError, match=why):
        changed(TOPIC_ATTRIBUTES, current, changes)
