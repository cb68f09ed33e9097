"""Many connections, each within its own bounds, that together would take all memory."""

from __future__ import annotations

import json
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.raw_client import RawClient, json_request, pull_ext
from tests.integration.server_processes import UNSUPPORTED, server_process
from tests.waits import eventually

from cometmq.logs.limits import INTERVAL_S, PER_PEER

LIMIT = 16 << 20
FRAME = 1 << 20
PULL = 11


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def ended_by_server(client: RawClient) -> bool:
    client.socket.setblocking(False)
    try:
        return client.socket.recv(1 << 16) == b"" or ended_by_server(client)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("kind", ["broker", "namesrv"])
def test_unfinished_frames_of_many_clients_are_bounded_together(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = {"maxBytesInFlight": LIMIT}
    with (
        log.open("wb") as file,
        server_process(kind, tmp_path, stderr=file, settings=settings) as server,
        ExitStack() as stack,
    ):
        began = time.monotonic()
        before = resident_bytes(server.process.pid)
        frame = json_request(UNSUPPORTED, body=bytes(FRAME))
        stalled = []
        for _ in range(100):
            client = stack.enter_context(RawClient(server.address))
            client.socket.sendall(frame[:-1])
            stalled.append(client)
            server.refuses()
        ended = eventually(lambda: sum(map(ended_by_server, stalled)))
        assert ended < 100
        # At the worst the process holds what was asked for and given back: the bound, and as much
        # for fragmentation.
        assert resident_bytes(server.process.pid) - before < 3 * LIMIT
        assert server.stop() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    cut = [line for line in lines if line["event"].startswith("connection closed: too many bytes")]
    intervals = 1 + (time.monotonic() - began) // INTERVAL_S + 1
    assert 1 <= len(cut) <= PER_PEER * intervals
    assert cut[0]["limit"] == f"maxBytesInFlight={LIMIT}"


@pytest.mark.parametrize("kind", ["broker", "namesrv"])
def test_headers_that_never_end_are_cut(kind: str, tmp_path: Path) -> None:
    settings = {"unfinishedFrameTimeoutSeconds": 1}
    with server_process(kind, tmp_path, settings=settings) as server, ExitStack() as stack:
        slow = [stack.enter_context(RawClient(server.address)) for _ in range(200)]
        for client in slow:
            client.socket.sendall(struct.pack(">II", 1000, 900) + b'{"code":')
        eventually(lambda: all(map(ended_by_server, slow)))
        server.refuses()
        assert server.stop() == 0


def test_pulls_that_wait_are_bounded_by_what_they_brought(tmp_path: Path) -> None:
    """Any number of bytes may stand in a pull's body, and pulls wait as long as they like."""
    settings = {"maxBytesInFlight": LIMIT}
    with server_process("broker", tmp_path, settings=settings) as server, ExitStack() as stack:
        assert server.send().code == 0
        ext = pull_ext("t", queueOffset=1, sysFlag=2 | 4, suspendTimeoutMillis=3_600_000)
        honest = stack.enter_context(RawClient(server.address))
        honest.socket.sendall(json_request(PULL, ext, opaque=5))
        waiting = [stack.enter_context(RawClient(server.address)) for _ in range(40)]
        for client in waiting:
            client.socket.sendall(json_request(PULL, ext, bytes(FRAME)))
        ended = eventually(lambda: sum(map(ended_by_server, waiting)))
        assert ended < 40
        assert server.send().code == 0
        assert (honest.receive().opaque, server.stop()) == (5, 0)
