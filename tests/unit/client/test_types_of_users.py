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

# Durations and moments, which are numbers, timedeltas and datetimes.
DURATIONS = """
from datetime import UTC, datetime, timedelta

from cometmq import LitePullConsumer, Message, Producer, PushConsumer
from cometmq.aio import SimpleConsumer


def listen(messages: list[Message]) -> None:
    print(messages)


def send(producer: Producer) -> None:
    later = Message("t", b"x", delay_ms=timedelta(seconds=5))
    later.deliver_at_ms = datetime.now(UTC)
    at: int | None = later.deliver_at_ms
    producer.send(later, timeout_ms=timedelta(seconds=1))
    producer.send(later, timeout_ms=at)
    producer.send(later, timeout_ms="1 s")  # planted


def poll(consumer: LitePullConsumer) -> None:
    for message in consumer:
        with message:
            print(message.body)
        message.nack(timedelta(minutes=1))


async def receive(consumer: SimpleConsumer) -> None:
    async for message in consumer:
        await message.extend(timedelta(minutes=1))


Producer("g", send_timeout_ms=timedelta(seconds=5), namesrv="h:1")
PushConsumer("g", listen, close_timeout_ms=1000)  # a listener of more than it gets  # planted
Producer("g", send_timeout_ms="5 s")  # planted
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def planted(text: str = PROGRAM) -> list[int]:
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if line.endswith("# planted")]


def test_mypy_finds_the_mistakes_and_nothing_else(program: Path) -> None:
    durations = program.with_name("durations.py")
    durations.write_text(DURATIONS)
    cache = str(program.parent)
    # It reads the whole package first, once for both.
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache]
    found = subprocess.run(
        [*command, str(program), str(durations)],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )
    errors = [line.split(":") for line in found.stdout.splitlines() if ": error:" in line]
    lines = sorted({(Path(path).name, int(line)) for path, line, *_ in errors})
    assert lines == [
        *(("durations.py", line) for line in planted(DURATIONS)),
        *(("program.py", line) for line in planted()),
    ], found.stdout


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


def test_pyright_finds_the_mistakes_and_nothing_in_the_service_that_people_copy(
    program: Path,
) -> None:
    """mypy checks the service with all the examples."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLES / "service", program.parent / "service", ignore=ignored)
    errors = pyright_errors(program.parent)
    assert {each["file"] for each in errors} == {str(program)}, errors
    assert sorted({each["range"]["start"]["line"] + 1 for each in errors}) == planted(), errors
