"""Java 5 consumers with setClientRebalance(false) at our broker: it shares the queues for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.interop.clients import CometClient, JavaClient
from tests.interop.conftest import need
from tests.waits import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 40


def test_consumers_that_leave_rebalancing_to_the_broker_get_every_message(
    comet_servers: Namesrv, fresh: Callable[[str], str]
) -> None:
    need("java", "mvn")
    base = {"namesrv": comet_servers, "topic": fresh("topic")}
    CometClient().produce(**base, count=COUNT)
    options = {**base, "group": fresh("group"), "client_rebalance": False, "until_stdin": True}
    with (
        JavaClient(5).start("consume", **options, member="one") as one,
        JavaClient(5).start("consume", **options, member="two") as two,
    ):
        for each in (one, two):
            each.wait_started()

        def indexes() -> set[int]:
            events = one.named("message") + two.named("message")
            return {int(event["properties"]["index"]) for event in events}

        eventually(lambda: indexes() == set(range(COUNT)))
        CometClient().produce(**base, count=COUNT, first=COUNT)
        eventually(lambda: indexes() == set(range(2 * COUNT)))
        # Each has a share once both are known.
        assert {event["member"] for event in one.named("message")} == {"one"}
        one.finish()
        two.finish()
