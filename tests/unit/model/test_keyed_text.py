"""Make sentences from keys: in English at once, and still known by key and values."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from cometmq.errors import CometMQError
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.keyed_text import KeyedText, TextKey, filled, text_of


class Sample(TextKey):
    WAITING = "{count:# message waits|# messages wait} in {queue}: {names}"
    NOBODY = "nobody waits"


def test_a_sentence_is_a_text_that_remembers_its_key_and_values() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    made = Sample.WAITING(count=2, queue=queue, names=("a", "b"))
    assert made == f"2 messages wait in {queue}: a, b"
    assert json.loads(json.dumps([made])) == [str(made)]
    assert (made.key, made.key.id, made.values["count"]) == (Sample.WAITING, "Sample.WAITING", 2)
    assert Sample.WAITING(count=1, queue="q", names=()) == "1 message waits in q: "
    assert Sample.NOBODY() == "nobody waits"


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
def test_a_copy_keeps_the_key(copied: object) -> None:
    assert callable(copied)
    made = copied(Sample.WAITING(count=2, queue="q", names=("a",)))
    assert isinstance(made, KeyedText)
    assert (made, made.key) == ("2 messages wait in q: a", Sample.WAITING)


def test_an_error_keeps_the_key_of_what_it_says() -> None:
    keyed = text_of(CometMQError(Sample.NOBODY()))
    assert isinstance(keyed, KeyedText)
    assert keyed == "nobody waits"
    assert text_of(CometMQError("no key")) == "no key"
    assert text_of(ValueError()) == ""


def test_values_are_no_templates() -> None:
    assert filled("{name}", {"name": "{count} %(x)s"}) == "{count} %(x)s"
    with pytest.raises(KeyError):
        Sample.WAITING(count=1)
