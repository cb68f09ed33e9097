"""Thousands of half messages that nobody ends are checked beside other requests."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.integration.raw_client import RawClient, properties, send_ext
from tests.integration.transaction_faces import QUICK
from tests.waits import until

from cometmq.broker.transactions.check import TransactionChecker
from cometmq.testing import Cluster

_HALVES = 200


def _send_halves(address: str) -> None:
    with RawClient(address) as raw:
        for number in range(_HALVES):
            text = properties({"UNIQ_KEY": f"{number:032X}", "TRAN_MSG": "true", "PGROUP": "g"})
            ext = send_ext("halves", letters=True, properties=text, producerGroup="g", sysFlag=4)
            assert raw.ask(310, ext, b"half of it").code == 0


async def test_checks_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 were checked in a turn of the loop, whatever they took: up to 24 ms."""
    in_turn = most = checked = 0

    def ended() -> None:
        nonlocal in_turn
        in_turn = 0

    def counted(checker: TransactionChecker, first: int, now_ms: int) -> int:
        nonlocal in_turn, most, checked
        if not in_turn:
            asyncio.get_running_loop().call_soon(ended)
        in_turn += 1
        most, checked = max(most, in_turn), checked + 1
        time.sleep(0.0004)
        return check(checker, first, now_ms)

    check = TransactionChecker.check
    monkeypatch.setattr(TransactionChecker, "check", counted)
    async with Cluster(properties=QUICK) as cluster:
        await asyncio.to_thread(_send_halves, cluster.brokers[0].address)
        await until(lambda: checked >= _HALVES)
    assert most <= 4
