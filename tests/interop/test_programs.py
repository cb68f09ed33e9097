"""A client program that ends before its time fails the test that waits for it, at once."""

from __future__ import annotations

import sys

import pytest
from tests.interop.clients import RunningClient
from tests.interop.peers import PeerError
from tests.waits import eventually

pytestmark = pytest.mark.interop

STARTED = """print('{"event":"started"}', flush=True)\n"""
FAILS = f"import sys\n{STARTED}sys.exit('no route')"


def running(program: str, *, serves: bool = False) -> RunningClient:
    return RunningClient("client", [sys.executable, "-c", program], [], serves=serves)


@pytest.mark.parametrize("serves", [False, True])
def test_tests_waited_ten_minutes_for_a_program_that_had_failed(serves: bool) -> None:
    with (
        running(FAILS, serves=serves) as client,
        pytest.raises(PeerError, match=r"client: ended with 1\n.*started.*\n.*no route"),
    ):
        eventually(lambda: client.named("message"))


def test_events_of_a_program_that_ended_well_or_was_killed_can_be_read() -> None:
    with running(STARTED) as ended:
        ended.finish()
        assert ended.named("started")
    with running(f"{STARTED}import time\ntime.sleep(600)") as killed:
        killed.wait_started()
        killed.kill()
        assert killed.named("started")
