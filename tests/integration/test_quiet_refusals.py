"""Questions about what does not exist are refused at debug: tools asked them 681 times in 35 minutes."""

from __future__ import annotations

from random import Random

import pytest
from structlog.testing import capture_logs

from cometmq import Message
from cometmq.aio import AdminClient, Producer
from cometmq.errors import CometMQError
from cometmq.testing import Cluster


def test_a_refused_question_is_no_warning_and_a_refused_send_is_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with (
            AdminClient(namesrv=cluster.namesrv) as admin,
            Producer("shop", namesrv=cluster.namesrv, max_message_size_bytes=8 << 20) as producer,
        ):
            await producer.send(Message("orders", b"1"))
            with capture_logs() as logs, pytest.raises(CometMQError):
                await admin.groups.connections("nobody-knows-it")
            refused = [line for line in logs if line["event"] == "request refused"]
            assert {line["log_level"] for line in refused} == {"debug"}
            with capture_logs() as logs, pytest.raises(CometMQError):
                await producer.send(Message("orders", Random(1).randbytes(5 << 20)))
            assert "warning" in {
                line["log_level"] for line in logs if line["event"] == "request refused"
            }

    with Cluster(clock="virtual") as cluster:
        cluster.run(scenario(cluster))
