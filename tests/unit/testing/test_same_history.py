"""One seed gives one history, also in another process that orders its sets in another way, and in
another time zone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S

PROGRAM = Path(__file__).with_name("seeded_history.py")


@pytest.mark.timeout(600)
def test_two_processes_have_the_same_history(tmp_path: Path) -> None:
    """A cluster of two brokers, of which one is killed, with four clients. When it failed first, a
    set of addresses ordered heartbeats, and sets of connections ordered how a server closed them.
    """
    runs = [("1", "7", "UTC0"), ("2", "7", "JST-9"), ("3", "8", "UTC0")]
    processes = []
    for hash_seed, seed, zone in runs:
        path = tmp_path / hash_seed
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": zone}
        command = [sys.executable, str(PROGRAM), seed, str(path)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        processes.append(process)
    for process in processes:
        output, _ = process.communicate(timeout=PROCESS_WAIT_S)
        assert process.returncode == 0, output.decode()
    first, second, other = ((tmp_path / name).read_text().splitlines() for name, *_ in runs)
    assert sum(" sent " in line for line in first) == 21
    assert sum(line.startswith("Event(") for line in first) > 300
    assert any("commitlog" in line for line in first)
    for number, (one, two) in enumerate(zip(first, second, strict=False)):
        assert one == two, f"line {number}"
    assert len(first) == len(second)
    assert first != other
