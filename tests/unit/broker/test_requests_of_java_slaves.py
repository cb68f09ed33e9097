"""Requests by which slaves of RocketMQ 5.5, and Java's tools for slaves, got stuck at a refusal."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.broker.broker_box import Client, running


async def test_a_slave_of_5_5_gets_the_table_of_timed_messages(tmp_path: Path) -> None:
    async with running(tmp_path, admin_from="10.0.0.9") as broker:
        answer = await Client(broker).ask(61, {})
        assert answer.code == 0, answer.remark
        assert json.loads(bytes(answer.body))["timingCount"] == {}


async def test_a_reset_of_the_masters_flush_offset_succeeds(tmp_path: Path) -> None:
    async with running(tmp_path, admin_from="10.0.0.9") as broker:
        answer = await Client(broker).ask(908, {"masterFlushOffset": 0})
        assert answer.code == 0, answer.remark
