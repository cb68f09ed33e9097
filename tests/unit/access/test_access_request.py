"""Access control and the handler read the same fields of a request."""

from __future__ import annotations

import pytest

from cometmq.access.access_request import AccessRequest
from cometmq.errors import ProtocolError
from cometmq.protocol.command import Request, RequestDecoder
from cometmq.protocol.frame import Frame
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests import HEART_BEAT

BODY = b'{"clientID":"c","producerDataSet":[{"groupName":"g"}]}'


def decoded(header: bytes) -> Request[NoHeader]:
    decoder = RequestDecoder()
    decoder.register(HEART_BEAT.code, NoHeader)
    return decoder.decode(Frame(0, header, BODY), HEART_BEAT.code)


def test_a_heartbeat_was_decoded_for_its_rights_and_again_for_its_handler() -> None:
    request = decoded(b'{"code":34}')
    judged = AccessRequest(HEART_BEAT, request, "peer", "10.0.0.1").typed_body
    assert judged.client_id == "c"
    assert HEART_BEAT.typed_body(request) is judged


def test_a_field_of_the_header_stood_for_the_body() -> None:
    with pytest.raises(ProtocolError, match="Expected `null`, got `object`"):
        decoded(b'{"code":34,"  ":{"clientID":"another"}," ":{}}')
