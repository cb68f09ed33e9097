"""Access control and the handler read the same fields of a request."""

from __future__ import annotations

from cometmq.access.access_request import AccessRequest
from cometmq.protocol.command import RequestDecoder
from cometmq.protocol.frame import Frame
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests import HEART_BEAT

BODY = b'{"clientID":"c","producerDataSet":[{"groupName":"g"}]}'


def test_a_heartbeat_was_decoded_for_its_rights_and_again_for_its_handler() -> None:
    decoder = RequestDecoder()
    decoder.register(HEART_BEAT.code, NoHeader)
    header = b'{"code":34,"  ":{"clientID":"another"}," ":{}}'
    request = decoder.decode(Frame(0, header, BODY), HEART_BEAT.code)
    judged = AccessRequest(HEART_BEAT, request, "peer", "10.0.0.1").typed_body
    assert judged.client_id == "c", "a field of the header stood for the body"
    assert HEART_BEAT.typed_body(request) is judged
