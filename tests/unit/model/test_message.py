from __future__ import annotations

from cometmq.model.message import Message, MessageExt


def test_tags_keys_and_wait_travel_as_properties() -> None:
    message = Message("t", b"body", tags="paid", keys=["O-1", "O-2"], wait_store_ok=False)
    assert message.properties == {"TAGS": "paid", "KEYS": "O-1 O-2", "WAIT": "false"}
    assert message.keys == ("O-1", "O-2")
    assert not message.wait_store_ok


def test_a_bare_message_has_no_properties() -> None:
    message = Message("t", b"")
    assert message.properties == {}
    assert (message.tags, message.keys, message.unique_id) == (None, (), None)
    assert message.wait_store_ok


def test_one_key_may_be_given_as_a_text() -> None:
    assert Message("t", b"", keys="O-1").keys == ("O-1",)


def test_the_properties_given_are_not_shared() -> None:
    given = {"a": "1"}
    message = Message("t", b"", properties=given)
    message.tags = "x"
    assert given == {"a": "1"}


def test_a_copy_has_its_own_properties() -> None:
    message = MessageExt("t", b"body", properties={"a": "1"}, msg_id="ID", queue_offset=7)
    copy = message.copy()
    copy.properties["a"] = "2"
    copy.topic = "other"
    assert message.properties == {"a": "1"}
    assert message.topic == "t"
    assert type(copy) is MessageExt
    assert (copy.msg_id, copy.queue_offset, copy.body) == ("ID", 7, b"body")


def test_a_message_prints_without_its_body() -> None:
    assert "<1000 bytes>" in repr(Message("t", bytes(1000)))
    assert "<1000 bytes>" in repr(MessageExt("t", bytes(1000)))
