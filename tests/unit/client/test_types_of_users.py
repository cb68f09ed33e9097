"""Strict type checkers accept programs of users, and find the mistakes that are planted in them.

pyright comes with the tools of a checkout and runs in Node.js, which CI has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyright
import pytest
from tests.waits import PROCESS_WAIT_S

EXAMPLES: Final = Path(__file__).parents[3] / "examples"

PROGRAM = """
import asyncio
from datetime import UTC, datetime, timedelta

import cometmq
from cometmq import ConsumeReport, ConsumeResult, MessageExt, MessageQueue, aio


def began(queues: list[MessageQueue]) -> None:
    print(queues)


async def ended(queues: list[MessageQueue]) -> None:
    print(queues)


def of_topics(topics: list[str]) -> None:
    print(topics)


async def polls(consumer: aio.LitePullConsumer, queue: MessageQueue) -> None:
    async for message in consumer:
        async with message:
            print(message.body)
        await message.nack(timedelta(seconds=1))
        await message.nack("soon")  # planted
    await consumer.seek_to_time("orders", datetime.now(UTC))
    await consumer.seek_to_time(queue, "yesterday")  # planted
    await consumer.seek("orders", 3)  # planted
    consumer.pause("orders")
    consumer.pause([queue])
    consumer.resume(7)  # planted
    behind: int | None = (await consumer.lag())[queue].messages
    certain: int = (await consumer.lag())[queue].messages  # planted
    print(behind, certain)


def listens() -> None:
    consumer = cometmq.PushConsumer(
        "g",
        on_assigned=began,
        on_revoked=ended,
        rebalance_callback_timeout_ms=timedelta(seconds=5),
        consume_message_batch_max_size=10,
        consume_message_batch_max_age_ms=timedelta(seconds=1),
    )
    cometmq.PushConsumer("g", on_assigned=of_topics)  # planted

    @consumer.on("orders", tags=["paid"])
    def bill(messages: list[MessageExt]) -> None:
        print(messages[0].body)

    @consumer.on("orders", "sent || lost")
    def follow(messages: list[MessageExt]) -> ConsumeResult | ConsumeReport:
        return ConsumeResult.SUCCESS

    @consumer.on("orders", tags=3)  # planted
    def count(messages: list[MessageExt]) -> None: ...

    @consumer.on("parcels")  # planted
    def pack(message: MessageExt) -> None: ...

    follow([])
    consumer.run()
    with cometmq.LitePullConsumer("g") as polled:
        for message in polled:
            with message:
                print(message.origin_topic)
            message.extend(5)  # planted


async def mixes_the_faces(consumer: aio.SimpleConsumer) -> None:
    with aio.Producer("g"):  # planted
        pass
    async with cometmq.Producer("g"):  # planted
        pass
    for _ in consumer:  # planted
        pass
    async for _ in aio.PushConsumer("g"):  # planted
        pass


async def main() -> None:
    consumer = aio.PushConsumer("g")
    consumer.subscribe("orders")
    await consumer.run()


asyncio.run(main())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def planted() -> list[int]:
    lines = enumerate(PROGRAM.splitlines(), 1)
    return [number for number, line in lines if line.endswith("# planted")]


def test_mypy_finds_the_mistakes_and_nothing_else(program: Path) -> None:
    cache = str(program.parent)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, str(program)]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=PROCESS_WAIT_S, check=False
    )
    errors = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert sorted({int(line.split(":")[1]) for line in errors}) == planted(), found.stdout


def node() -> str:
    """Return the path of Node.js; without it skip the test, in CI fail it."""
    path = shutil.which("node")
    if path is None:
        sentence = "Node.js is not installed, in which pyright runs"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return path


def pyright_errors(directory: Path) -> list[dict[str, Any]]:
    """Return what pyright, strict, finds in the programs of a directory."""
    # Named, so that pyright looks nowhere else.
    config = {"typeCheckingMode": "strict", "include": [str(directory)]}
    (directory / "pyrightconfig.json").write_text(json.dumps(config))
    # The package's own command asks npm for newer versions first.
    program = Path(pyright.__file__).parent / "dist" / "index.js"
    found = subprocess.run(
        [node(), str(program), "--outputjson", "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
        cwd=directory,
    )
    report = json.loads(found.stdout)
    assert report["summary"]["filesAnalyzed"] > 0
    errors: list[dict[str, Any]] = report["generalDiagnostics"]
    return errors


def test_pyright_finds_the_mistakes_and_nothing_else(program: Path) -> None:
    errors = pyright_errors(program.parent)
    assert sorted({each["range"]["start"]["line"] + 1 for each in errors}) == planted(), errors


def test_pyright_finds_nothing_in_the_service_that_people_copy(tmp_path: Path) -> None:
    """mypy checks it with all the examples."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLES / "service", tmp_path / "service", ignore=ignored)
    assert pyright_errors(tmp_path) == []
