"""Bodies that do not fit, before the user of a consumer gets them."""

from __future__ import annotations

import pytest

from cometmq.client.consuming.listeners.undecodable import DEAD_LETTER, Payloads
from cometmq.client.namespaces import Namespace
from cometmq.model.message import MessageExt
from cometmq.payloads import Codecs, Json


async def test_a_topic_of_bodies_that_do_not_fit_is_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    payloads = Payloads(Codecs({"orders": Json(int)}), "dead-letter", "billing", Namespace(None))
    messages = [MessageExt("orders", b"espresso") for _ in range(100)]
    found = await payloads.sort(messages)
    assert [refused.level for refused in found.refused] == [DEAD_LETTER] * 100
    [line] = caplog.messages
    assert "messages do not fit their codec" in line
    assert "messages=1 " in line
    assert "goes_to='dead-letter'" in line
