"""A program that consists of `consumer.run()`, as a process that gets signals under load."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.client_faces import BlockingFace
from tests.waits import PROCESS_WAIT_S, eventually

import cometmq
from cometmq import ConsumeResult, Message
from cometmq.errors import ClientStateError

pytestmark = [pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"})]
COUNT = 400
NOBODY = "127.0.0.1:1"

_HEAD = """
import asyncio, os, sys, time
import cometmq, cometmq.aio
from cometmq import ConsumeFromWhere
namesrv, topic, place = sys.argv[1:4]
options = dict(namesrv=namesrv, consume_from=ConsumeFromWhere.FIRST_OFFSET, concurrency=4)
done = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(messages):
    for message in messages:
        os.write(done, message.body + b"\\n")
"""
_BLOCKING = (
    _HEAD
    + """
consumer = cometmq.PushConsumer(topic, **options, {more})
@consumer.on(topic)
def work(messages):
    time.sleep(0.05)
    note(messages)
consumer.run()
print("drained")
"""
)
_ASYNCIO = (
    _HEAD
    + """
async def work(messages):
    await asyncio.sleep(0.05)
    note(messages)
async def main():
    # Two groups: of two members of one, the second would take queues whose messages the first works on.
    consumers = [cometmq.aio.PushConsumer(group, work, **options) for group in (topic, f"{topic}-2")]
    consumers[0].subscribe(topic)
    consumers[1].subscribe("BenchmarkTest")
    await asyncio.gather(*(consumer.run() for consumer in consumers))
asyncio.run(main())
print("drained")
"""
)
_STUCK = (
    _HEAD
    + """
def work(messages):
    note(messages)
    time.sleep(3600)
consumer = cometmq.PushConsumer(topic, work, **options, close_timeout_ms=3600_000)
consumer.subscribe(topic)
consumer.run()
"""
)


@contextmanager
def running(program: str, namesrv: str, topic: str, place: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, namesrv, topic, str(place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(place: Path) -> list[str]:
    return place.read_text().splitlines() if place.exists() else []


def until(process: subprocess.Popen[str], place: Path, count: int) -> None:
    """Wait until so many messages are done, or the process has ended."""
    eventually(
        lambda: len(lines(place)) >= count or process.poll() is not None, wait_s=PROCESS_WAIT_S
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(_BLOCKING.format(more=""), id="blocking"),
        pytest.param(_BLOCKING.format(more="orderly=True"), id="orderly"),
        pytest.param(_BLOCKING.format(more="mode='pop'"), id="pop"),
        pytest.param(_ASYNCIO, id="asyncio"),
    ],
)
def test_a_signal_under_load_loses_and_repeats_nothing(
    program: str, namesrv: str, name: str, tmp_path: Path
) -> None:
    face, done = BlockingFace(namesrv), tmp_path / "done"
    producer = face.producer(name)

    def send() -> None:
        for number in range(COUNT):
            producer.send(Message(name, b"%d" % number))

    producer.send(Message(name, b"first"))
    sending = threading.Thread(target=send)
    sending.start()
    for more, number in ((50, signal.SIGTERM), (50, signal.SIGINT), (COUNT, signal.SIGTERM)):
        enough = min(len(lines(done)) + more, COUNT + 1)
        with running(program, namesrv, name, done) as process:
            until(process, done, enough)
            process.send_signal(number)
            reported, complaints = process.communicate(timeout=PROCESS_WAIT_S)
        assert (process.returncode, reported) == (0, "drained\n"), complaints
    sending.join()
    face.close()
    assert sorted(lines(done)) == sorted(["first", *map(str, range(COUNT))])


def test_a_second_signal_ends_the_process_at_once(namesrv: str, name: str, tmp_path: Path) -> None:
    face, done = BlockingFace(namesrv), tmp_path / "done"
    face.producer(name).send(Message(name, b"x"))
    face.close()
    with running(_STUCK, namesrv, name, done) as process:
        eventually(lambda: lines(done) == ["x"], wait_s=PROCESS_WAIT_S)

        def has_ended() -> bool:
            # Signals that come at one moment are one, so there may be a third.
            process.send_signal(signal.SIGTERM)
            return process.poll() is not None

        eventually(has_ended, wait_s=PROCESS_WAIT_S, pause_s=0.2)
        # The first one does not end it: then the code would be -SIGTERM, or 0.
        assert process.returncode == 128 + signal.SIGTERM


def test_run_is_refused_outside_of_the_main_thread() -> None:
    refused: list[BaseException] = []
    consumer = cometmq.PushConsumer("g", lambda _: ConsumeResult.SUCCESS, namesrv=NOBODY)
    consumer.subscribe("t")

    def run() -> None:
        try:
            consumer.run()
        except ClientStateError as error:
            refused.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    consumer.close()
    [error] = refused
    assert "only the main thread gets" in str(error)
