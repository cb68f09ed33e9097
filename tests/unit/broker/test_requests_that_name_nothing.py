"""Requests whose list is empty, null or misspelt: they were answered with success and did nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.broker_box import Client, running

LISTS: dict[int, tuple[str, dict[str, str]]] = {
    18: ("topicConfigList", {}),
    225: ("groupConfigList", {}),
    34: ("consumerDataSet", {"clientID": "c"}),
    41: ("mqSet", {"clientId": "c", "consumerGroup": "g"}),
    42: ("mqSet", {"clientId": "c", "consumerGroup": "g"}),
}


@pytest.mark.parametrize("spelt", ["empty", "null", "misspelt", "missing"])
@pytest.mark.parametrize("code", LISTS)
async def test_a_request_that_names_nothing_is_refused_by_name(
    tmp_path: Path, code: int, spelt: str
) -> None:
    name, others = LISTS[code]
    spellings: dict[str, dict[str, Any]] = {
        "empty": {name: []},
        "null": {name: None},
        "misspelt": {name + "s": [{"topicName": "t", "groupName": "g"}]},
        "missing": {},
    }
    body = json.dumps({**others, **spellings[spelt]}).encode()
    async with running(tmp_path, admin_from="10.0.0.9") as broker:
        answer = await Client(broker).ask(code, {}, body)
    assert answer.code != 0
    assert name in (answer.remark or "")


async def test_a_member_with_a_namespace_of_the_second_kind_is_refused(client: Client) -> None:
    body = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "g"}]}).encode()
    assert (await client.ask(34, {}, body)).code == 0
    answer = await client.ask(34, {"nsd": "true", "ns": "tenant-a"}, body)
    assert answer.code != 0
    assert "'tenant-a'" in (answer.remark or "")
