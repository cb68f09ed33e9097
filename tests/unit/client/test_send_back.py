"""Where messages go that a member sends back."""

from __future__ import annotations

from tests.unit.client.fakes import FakeInstance, route, send_ok

from cometmq.client.send_back import Returns
from cometmq.model.message import MessageExt
from cometmq.model.names import AUTO_CREATE_TOPIC
from cometmq.protocol.codes import RequestCode

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
