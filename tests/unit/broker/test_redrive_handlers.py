"""The request that sends dead letters again: who may ask, how long an answer takes, who shares a run.

`test_redrive.py` shows which messages a redrive sends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.broker_box import HOST, Client, turns

from cometmq.broker.refusal import Refused
from cometmq.broker.retries.redrive import RedriveState
from cometmq.broker.retries.redrive_handlers import MAX_SELECTED, RedriveHandlers
from cometmq.errors import StoreBusyError, StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.redrive import LetterSelection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.tasks import TaskOwner
from cometmq.testing import virtual

REDRIVE = 30001
INVALID = ResponseCode.INVALID_PARAMETER
Asked = tuple[str, str, LetterSelection, bool]


class HeldRedrives:
    """Redrives that are under way until the test ends them."""

    def __init__(self) -> None:
        self.begun: list[Asked] = []
        self.runs: list[asyncio.Future[None]] = []
        self.states: dict[str, RedriveState] = {}

    def get(self, redrive_id: str) -> RedriveState | None:
        return self.states.get(redrive_id)

    def check(
        self, redrive_id: str, group: str, selection: LetterSelection, *, only_group: bool
    ) -> None:
        state = self.states[redrive_id]
        if (state.group, state.selection, state.only_group) != (group, selection, only_group):
            raise Refused(INVALID, f"redrive {redrive_id} has sent other letters")

    async def redrive(
        self,
        redrive_id: str,
        group: str,
        selection: LetterSelection,
        *,
        only_group: bool,
        may_send: Callable[[str], bool],
    ) -> RedriveState:
        self.begun.append((redrive_id, group, selection, only_group))
        state = self.states.setdefault(
            redrive_id, RedriveState(redrive_id, group, selection, only_group, 0, 0, 100, 0)
        )
        self.runs.append(asyncio.get_running_loop().create_future())
        await self.runs[-1]
        state.finished, state.next_offset, state.sent_count = True, 100, 90
        state.skipped_count = 10
        return state


class Desk:
    """An operator, and redrives that last."""

    def __init__(self) -> None:
        self.redrives = HeldRedrives()
        self.tasks = TaskOwner("test")
        self.handlers = Handlers()
        RedriveHandlers(cast("Any", self.redrives), self.tasks).register(self.handlers)
        self.client = self.another(4711)

    def another(self, port: int) -> Client:
        return Client(cast("Any", SimpleNamespace(handlers=self.handlers)), port, host=HOST)

    async def ask(
        self,
        redrive_id: str = "r1",
        group: str = "audit",
        client: Client | None = None,
        **more: Any,
    ) -> RemotingCommand:
        selection = {key: more.pop(key) for key in ("ids", "keys", "beginMs") if key in more}
        ext = {"redriveId": redrive_id, "group": group, **more}
        body = json.dumps(selection).encode() if selection else b""
        return await (client or self.client).ask(REDRIVE, ext, body)


def report(answer: RemotingCommand) -> dict[str, Any]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return dict(json.loads(bytes(answer.body)))


def scene(play: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        desk = Desk()
        await play(desk)
        await desk.tasks.close()

    virtual.run(run())


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_redrive_that_ends_within_a_second_is_answered_with_its_end() -> None:
    async def play(desk: Desk) -> None:
        asking = desk.tasks.spawn(desk.ask(onlyGroup="true", ids=["U1"], keys=["k"], beginMs=5), "")
        await turns(8)
        assert desk.redrives.begun == [
            ("r1", "audit", LetterSelection(("U1",), ("k",), 5), True),
        ]
        desk.redrives.runs[0].set_result(None)
        assert report(await asking) == {
            "redriveId": "r1",
            "group": "audit",
            "sentCount": 90,
            "skippedCount": 10,
            "nextOffset": 100,
            "endOffset": 100,
            "finished": True,
        }
        assert now_s() < 0.1

    scene(play)


def test_without_a_body_all_letters_are_selected() -> None:
    async def play(desk: Desk) -> None:
        asking = desk.tasks.spawn(desk.ask(), "")
        await turns(8)
        assert desk.redrives.begun == [("r1", "audit", LetterSelection(), False)]
        desk.redrives.runs[0].set_result(None)
        await asking

    scene(play)


def test_a_longer_redrive_is_answered_after_a_second_with_how_far_it_is() -> None:
    async def play(desk: Desk) -> None:
        asking = desk.tasks.spawn(desk.ask(), "")
        await turns(8)
        desk.redrives.states["r1"].next_offset = 40
        found = report(await asking)
        assert (found["finished"], found["nextOffset"], found["endOffset"]) == (False, 40, 100)
        assert now_s() == pytest.approx(1.0, abs=0.05)
        assert not desk.redrives.runs[0].cancelled(), "it goes on although its asker was answered"
        # Who asks again waits for the same one.
        asking = desk.tasks.spawn(desk.ask(), "")
        await turns(8)
        desk.redrives.runs[0].set_result(None)
        assert report(await asking)["finished"] is True
        assert len(desk.redrives.begun) == 1

    scene(play)


def test_a_redrive_goes_on_when_the_one_who_asked_is_gone() -> None:
    async def play(desk: Desk) -> None:
        desk.client.send(REDRIVE, {"redriveId": "r1", "group": "audit"})
        await turns(8)
        desk.client.line.connection.close()
        await asyncio.sleep(5)
        asking = desk.tasks.spawn(desk.ask(client=desk.another(4712)), "")
        await turns(8)
        assert len(desk.redrives.begun) == 1
        desk.redrives.runs[0].set_result(None)
        assert report(await asking)["sentCount"] == 90

    scene(play)


def test_redrives_of_two_ids_run_side_by_side() -> None:
    async def play(desk: Desk) -> None:
        asking = [desk.tasks.spawn(desk.ask(name), "") for name in ("r1", "r2")]
        await turns(8)
        desk.redrives.runs[1].set_result(None)
        assert report(await asking[1])["redriveId"] == "r2"
        assert now_s() < 0.1
        assert report(await asking[0])["finished"] is False

    scene(play)


@pytest.mark.parametrize(
    "other", [{"group": "billing"}, {"ids": ["U2"]}, {"onlyGroup": "true"}], ids=str
)
def test_an_id_that_runs_stands_for_its_request_only(other: dict[str, Any]) -> None:
    async def play(desk: Desk) -> None:
        desk.tasks.spawn(desk.ask(), "")
        await turns(8)
        answer = await desk.ask(**other)
        assert (answer.code, answer.remark) == (INVALID, "redrive r1 has sent other letters")
        assert now_s() < 0.1
        assert len(desk.redrives.begun) == 1

    scene(play)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(ResponseCode.QUERY_NOT_FOUND, "no letters here"), ResponseCode.QUERY_NOT_FOUND),
        (StoreBusyError("the disk is behind"), StoreBusyError("").code),
    ],
)
def test_a_redrive_that_fails_is_told_and_can_be_asked_for_again(
    error: Exception, code: int | None
) -> None:
    async def play(desk: Desk) -> None:
        asking = desk.tasks.spawn(desk.ask(), "")
        await turns(8)
        desk.redrives.runs[0].set_exception(error)
        answer = await asking
        assert answer.code == (code or ResponseCode.SYSTEM_ERROR)
        assert answer.remark == str(error)
        # It is no longer under way, so the same request goes on with it.
        asking = desk.tasks.spawn(desk.ask(), "")
        await turns(8)
        desk.redrives.runs[1].set_result(None)
        assert report(await asking)["finished"] is True

    scene(play)


def test_a_store_that_fails_when_nobody_waits_is_logged() -> None:
    async def play(desk: Desk) -> None:
        await desk.ask()
        with capture_logs() as logs:
            desk.redrives.runs[0].set_exception(StoreError("Input/output error"))
            await turns(8)
        assert [(line["redrive_id"], line["reason"]) for line in logs] == [
            ("r1", "Input/output error")
        ]

    scene(play)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"ids": ["U"] * (MAX_SELECTED + 1)},
            f"{MAX_SELECTED + 1} ids are selected, the limit MAX_SELECTED is {MAX_SELECTED}; use several",
        ),
        (
            {"keys": ["k"] * (MAX_SELECTED + 1)},
            f"{MAX_SELECTED + 1} keys are selected, the limit MAX_SELECTED is {MAX_SELECTED}; use several",
        ),
        ({"group": "no group"}, "no group"),
        ({"group": "x" * 300}, "300"),
    ],
    ids=["ids", "keys", "blank", "long"],
)
def test_what_does_not_fit_begins_no_redrive(asked: dict[str, Any], said: str) -> None:
    async def play(desk: Desk) -> None:
        answer = await desk.ask(**asked)
        assert answer.code == INVALID
        assert answer.remark is not None
        assert said in answer.remark
        assert desk.redrives.begun == []

    scene(play)


def test_a_selection_may_have_the_limit() -> None:
    async def play(desk: Desk) -> None:
        asking = desk.tasks.spawn(desk.ask(ids=["U"] * MAX_SELECTED), "")
        await turns(8)
        assert len(desk.redrives.begun) == 1
        desk.redrives.runs[0].set_result(None)
        assert (await asking).code == ResponseCode.SUCCESS

    scene(play)
