"""Whether members that ask for their queues pull or pop, and from which queues they pop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.broker_box import GROUP, HOST, Client, running

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups.assignments import Assignments
from cometmq.broker.groups.clients import ClientManager
from cometmq.broker.groups.request_modes import RequestModes
from cometmq.errors import ConfigError
from cometmq.model.results import MessageRequestMode
from cometmq.model.route import BrokerData, QueueData, TopicRouteData
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import QueryAssignmentRequestBody
from cometmq.protocol.bodies.overview import MessageRequestModes as Modes
from cometmq.protocol.envelope import Request
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.header import NoHeader
from cometmq.runtime.configuration.config import from_properties

SET, ALL = 401, 402


def choice(**fields: Any) -> bytes:
    chosen = {"topic": "orders", "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 2}
    return json.dumps({**chosen, **fields}).encode()


async def test_a_choice_outlives_its_broker(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker, host=HOST)
        assert json.loads(bytes((await client.ask(ALL, {})).body)) == {"messageRequestModeMap": {}}
        assert (await client.ask(SET, {}, choice())).code == 0
    async with running(tmp_path) as broker:
        table = json.loads(bytes((await Client(broker, host=HOST).ask(ALL, {})).body))[
            "messageRequestModeMap"
        ]
        assert table == {"orders": {GROUP: json.loads(choice())}}
    file = json.loads((tmp_path / "config" / "messageRequestMode.json").read_text())
    assert file["messageRequestModeMap"] == table


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": f"%RETRY%{GROUP}", "consumerGroup": "nobody"}, 16),
        ({"topic": "absent", "consumerGroup": "nobody"}, 17),
        ({"consumerGroup": "nobody"}, 26),
        ({"mode": "POP"}, 0),
        ({"mode": 1}, 0),
        ({"mode": 2}, 1),
    ],
)
async def test_a_choice_for_what_is_not_there_is_refused(
    tmp_path: Path, fields: dict[str, Any], code: int
) -> None:
    async with running(tmp_path, auto_create_subscription_group=False) as broker:
        answer = await Client(broker, host=HOST).ask(SET, {}, choice(**fields))
    assert answer.code == code, answer.remark


class Members(ClientManager):
    """Clients of a group, by name."""

    def __init__(self, *names: str) -> None:
        self._names = list(names)

    def consumer_ids(self, group: str) -> list[str]:
        return self._names


ROUTE = TopicRouteData(
    broker_datas=[BrokerData(name, "c", {0: f"{name}:1"}) for name in "ab"],
    queue_datas=[QueueData(name, 2, 2, 6) for name in "ab"],
)


async def shares(sharers: int, *names: str, mode: str = "POP") -> list[list[str]]:
    async def route_of(_topic: str) -> TopicRouteData:
        return ROUTE

    assignments = Assignments(Members(*names), route_of, lambda _topic, _group: (mode, sharers))
    found = []
    for name in names:
        body = QueryAssignmentRequestBody("t", "g", name)
        request = Request(code=400, header=NoHeader(), typed_body=body)
        answer = await assignments.assignment(None, request)  # type: ignore[arg-type]  # nobody asks it
        reported = requests.QUERY_ASSIGNMENT.answer_body.decode(answer.body)
        assert reported.message_queue_assignments is not None
        assert {each.mode for each in reported.message_queue_assignments} <= {mode}
        queues = [each.message_queue for each in reported.message_queue_assignments]
        found.append([f"{queue.broker_name}{queue.queue_id}" for queue in queues])
    return found


async def test_members_pop_from_all_queues_of_each_broker() -> None:
    for sharers in (-1, 0, 2, 3):
        assert await shares(sharers, "x", "y", "z") == [["a-1", "b-1"]] * 3


async def test_some_members_share_a_queue() -> None:
    assert await shares(1, "w", "x", "y", "z") == [
        ["a0", "a1"],
        ["a1", "b0"],
        ["b0", "b1"],
        ["b1", "a0"],
    ]


async def test_each_of_many_members_gets_a_queue() -> None:
    assert await shares(1, *"uvwxyz") == [["a0"], ["a1"], ["b0"], ["b1"], ["a0"], ["a1"]]


async def test_members_that_pull_share_no_queue() -> None:
    assert await shares(1, "x", "y", mode="PULL") == [["a0", "a1"], ["b0", "b1"]]


async def test_a_choice_stays_on_a_slave_whose_master_lost_its_file(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        modes = RequestModes(broker.parts)
        modes.copy(decode_body(b'{"messageRequestModeMap":{"orders":{"g":%b}}}' % choice(), Modes))
        modes.copy(Modes())
        assert modes.mode_of("orders", GROUP) == ("POP", 2)
        modes.copy(
            decode_body(
                b'{"messageRequestModeMap":{"orders":{"g":%b}}}' % choice(mode="PULL"), Modes
            )
        )
        assert modes.mode_of("orders", GROUP)[0] == "PULL"


async def test_groups_for_which_nobody_chose_get_messages_as_the_broker_is_set(
    tmp_path: Path,
) -> None:
    async with running(
        tmp_path,
        default_message_request_mode=MessageRequestMode.POP,
        default_pop_share_queue_num=3,
    ) as broker:
        modes = RequestModes(broker.parts)
        assert modes.mode_of("orders", GROUP) == ("POP", 3)
        assert modes.mode_of(f"%RETRY%{GROUP}", GROUP)[0] == "PULL"
        modes.copy(
            decode_body(
                b'{"messageRequestModeMap":{"orders":{"g":%b}}}' % choice(mode="PULL"), Modes
            )
        )
        assert modes.mode_of("orders", GROUP)[0] == "PULL"


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="defaultMessageRequestMode=PUSH"):
        from_properties(BrokerConfig, {"defaultMessageRequestMode": "PUSH"})
