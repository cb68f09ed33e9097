"""The processor time of processes, whatever their names are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.pipelines.table.processes import cpu_s

# Linux cuts this name within its eighth letter.
NAMED = """
import sys
open("/proc/self/comm", "wb").write("обработчик) 1".encode())
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux lists processes so")
def test_a_process_whose_name_is_cut_within_a_letter_is_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(UnicodeDecodeError):
            Path(f"/proc/{process.pid}/comm").read_bytes().decode()
        assert cpu_s(process.pid) is not None
        process.communicate()
