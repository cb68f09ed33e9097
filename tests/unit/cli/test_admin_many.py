"""Many things are asked for a few at once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cometmq.cli.admin.command import Run
from cometmq.cli.admin.many import ask_each
from cometmq.cli.admin.output import Form, Output


def test_many_things_are_asked_a_few_at_once_and_kept_in_order() -> None:
    run = Run(cast(Any, None), Output(Form.JSON), cast(Any, None), False, False)
    under_way = most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return number * 2

    answers = asyncio.run(ask_each(run, "numbers", range(500), ask))
    assert answers == [number * 2 for number in range(500)]
    assert 1 < most <= 16
