"""Processes that may have few files open, and clients that hold all they can get."""

from __future__ import annotations

import json
import resource
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.integration.raw_client import Command, RawClient, send_ext
from tests.integration.server_processes import (
    SEND,
    UNSUPPORTED,
    ServerProcess,
    server_process,
)
from tests.waits import eventually

QUERY = 12
LIMIT = 256
CLIENTS = 400


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, LIMIT))


def lines(path: Path, event: str) -> list[dict[str, object]]:
    # The server may be in the middle of its last line.
    whole = path.read_text().rpartition("\n")[0]
    read = [json.loads(line) for line in whole.splitlines()]
    return [line for line in read if line["event"] == event]


def fill(server: ServerProcess, stack: ExitStack, *, speak: bool) -> list[socket.socket]:
    """Open as many connections as the server keeps, of clients that then say nothing more."""
    held = []
    for _ in range(CLIENTS):
        client = RawClient(server.address)
        stack.callback(client.close)
        if speak:
            with suppress(OSError, EOFError, AssertionError):
                client.ask(UNSUPPORTED)
        held.append(client.socket)
    return held


@pytest.mark.parametrize("kind", ["broker", "namesrv"])
def test_idle_clients_leave_descriptors_for_files(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        server_process(kind, tmp_path, stderr=file, before=few_files) as server,
        ExitStack() as stack,
    ):
        if kind == "broker":
            sender = stack.enter_context(RawClient(server.address))
            assert sender.ask(SEND, send_ext("t"), b"before").code == 0
        fill(server, stack, speak=True)
        assert server.descriptors() <= LIMIT - 64 + 8
        if kind == "broker":
            # A file of the log is 1 MiB. So this needs new files of log and queue, and descriptors
            # for syncs.
            for _ in range(40):
                assert sender.ask(SEND, send_ext("t"), b"x" * 100_000).code == 0
            for topic in range(5):
                assert sender.ask(SEND, send_ext(f"new-{topic}"), b"x").code == 0
        # A thread of the server writes its log.
        (reported, *_) = eventually(lambda: lines(log, "connections refused"))
        reason = str(reported["reason"])
        assert f"the limit RLIMIT_NOFILE is {LIMIT}, of which 64 are kept for files" in reason
        assert "ulimit -n" in reason
        assert len(lines(log, "connections refused")) < 20
        assert lines(log, "the disk failed, the store takes no more messages") == []
        stack.close()
        eventually(lambda: served(server))
        assert server.stop() == 0


def served(server: ServerProcess) -> bool:
    try:
        with RawClient(server.address) as client:
            return client.ask(UNSUPPORTED).code == 3
    except (OSError, EOFError, AssertionError):
        return False


def test_silent_connections_give_their_place_to_who_speaks(tmp_path: Path) -> None:
    with (
        server_process("broker", tmp_path, before=few_files) as server,
        ExitStack() as stack,
    ):
        fill(server, stack, speak=False)
        # What the server has taken within the last second may be about to speak.
        eventually(lambda: served(server))
        time.sleep(1.5)
        for _ in range(10):
            sender = stack.enter_context(RawClient(server.address))
            assert sender.ask(SEND, send_ext("t"), b"x").code == 0
        assert server.stop() == 0


def test_a_limit_that_is_reached_passes_when_it_is_raised(tmp_path: Path) -> None:
    """When the store itself lacks descriptors, sends are refused; later they are accepted again."""
    log = tmp_path / "log"
    settings = {"flushDiskType": "SYNC_FLUSH", "defaultTopicQueueNums": 16}
    with (
        log.open("wb") as file,
        server_process("broker", tmp_path, stderr=file, settings=settings) as server,
        RawClient(server.address) as sender,
    ):

        def send(queue_id: int) -> Command:
            ext = send_ext("t", queueId=queue_id, defaultTopicQueueNums=16)
            return sender.ask(SEND, ext, b"x" * 50_000)

        first = send(0)
        assert first.code == 0
        # The index loads numpy. That is not to be cut short by the limit, which comes at once here;
        # outside of a test, descriptors are kept for files.
        query: dict[str, object] = {"topic": "t", "key": first.ext["transactionId"], "maxNum": 1}
        query |= {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1, "_UNIQUE_KEY_QUERY": "true"}
        eventually(lambda: sender.ask(QUERY, query).code == 0)
        pid = server.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (server.descriptors(), hard))
        # Each queue's file is mapped, which takes a descriptor.
        answers = [send(queue_id) for queue_id in range(1, 16)]
        refused = [answer for answer in answers if answer.code]
        assert {answer.code for answer in refused} == {2}
        remark = refused[-1].remark or ""
        assert "Too many open files" in remark
        assert "raise the limit (ulimit -n" in remark
        # Queues whose files are mapped are still served and synced.
        for _ in range(8):
            assert send(0).code == 0
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert [send(queue_id).code for queue_id in range(16)] == [0] * 16
        # New files of the log, of 1 MiB each, can be made again, too.
        assert [send(0).code for _ in range(60)] == [0] * 60
        assert lines(log, "the disk failed, the store takes no more messages") == []
        assert server.stop() == 0
    # No file was made in vain, with a gap before the next one.
    ends = {int(path.name) for path in (tmp_path / "store" / "commitlog").iterdir()}
    assert ends == {index << 20 for index in range(len(ends))}
    assert len(ends) <= 7
