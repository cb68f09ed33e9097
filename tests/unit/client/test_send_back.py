"""Where messages go that a member sends back."""

from __future__ import annotations

from tests.unit.client.fakes import FakeInstance, route, send_ok

from cometmq.client.consuming.listeners.send_back import Returns
from cometmq.model.message import MessageExt
from cometmq.model.names import AUTO_CREATE_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.messages.properties import decode_properties

SEND = RequestCode.SEND_MESSAGE_V2


async def test_a_retry_topic_without_a_route_yet_has_one_queue(fake: FakeInstance) -> None:
    """The default topic's other queues do not belong to the new topic, and a broker refuses sends
    to them.
    """
    fake.remoting.routes[AUTO_CREATE_TOPIC] = route("a", queues=8)
    fake.remoting.answers[SEND] = send_ok
    returns = Returns(fake.instance, "g", 3)
    for _ in range(5):
        await returns.send_to_retry_topic(MessageExt("t", b"x", broker_name="a", msg_id="U1"))
    sent = fake.remoting.sent(SEND)
    assert [(command.ext["b"], command.ext["e"]) for command in sent] == [("%RETRY%g", "0")] * 5


async def test_what_is_too_long_for_a_retry_goes_to_the_dead_letters_with_what_fits(
    fake: FakeInstance,
) -> None:
    """A Java broker has no room for what it adds, and refused the retry each five seconds for ever."""
    fake.remoting.routes[AUTO_CREATE_TOPIC] = route("a", queues=8)
    fake.remoting.answers[SEND] = send_ok
    returns = Returns(fake.instance, "g", None)
    message = MessageExt(
        "t", b"x", broker_name="a", msg_id="U1", properties={"long": "x" * 32_700, "mine": "1"}
    )
    await returns.send_to_retry_topic(message)
    (sent,) = fake.remoting.sent(SEND)
    properties = decode_properties(sent.ext["i"])
    assert (properties["LEFT_OUT_PROPERTIES"], properties["mine"]) == ("long", "1")
    assert int(sent.ext["j"]) > int(sent.ext["l"])


async def test_a_consumer_that_was_given_no_number_sends_none(fake: FakeInstance) -> None:
    fake.remoting.routes[AUTO_CREATE_TOPIC] = route("a", queues=8)
    fake.remoting.answers[SEND] = send_ok
    await Returns(fake.instance, "g", None).send_to_retry_topic(
        MessageExt("t", b"x", broker_name="a", msg_id="U1")
    )
    (sent,) = fake.remoting.sent(SEND)
    assert (sent.ext["j"], "l" in sent.ext) == ("1", False)
