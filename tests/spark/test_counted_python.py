"""The benchmarks' processor time has that of Spark's workers that have ended."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from pathlib import Path

from benchmarks.counted_python import counted_python, processor_seconds
from tests.waits import eventually

SECRET = "secret"
# Of a worker, for each byte that it gets.
BUSY_S = 0.3
# PySpark takes modules whose names begin like its own for workers.
WORKER = f"""
import time

def main(infile, outfile):
    if not infile.read(1):
        raise SystemExit(1)
    began = time.process_time()
    while time.process_time() < began + {BUSY_S}:
        pass
    outfile.write(b"!")
"""


def test_the_time_of_a_worker_that_has_ended_counts(tmp_path: Path) -> None:
    (tmp_path / "pyspark_busy.py").write_text(WORKER)
    python = counted_python(tmp_path)
    # Spark asks its Python for more than the daemon.
    assert subprocess.check_output([python, "-c", "print(1)"]) == b"1\n"
    daemon = subprocess.Popen(
        [python, "-m", "pyspark.daemon", "pyspark_busy"],
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "PYTHON_WORKER_FACTORY_SECRET": SECRET,
            "SPARK_REUSE_WORKER": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    try:
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        before = processor_seconds(daemon.pid)
        for ended in range(2):
            with socket.create_connection(("127.0.0.1", port)) as worker:
                (pid,) = struct.unpack("!i", worker.recv(4, socket.MSG_WAITALL))
                worker.sendall(struct.pack("!i", len(SECRET)) + SECRET.encode() + b"?")
                assert worker.recv(7, socket.MSG_WAITALL)[4:] == b"ok!"
            eventually(Path(f"/proc/{pid}").exists, lambda is_there: not is_there)
            assert processor_seconds(daemon.pid) - before >= 0.9 * BUSY_S * (ended + 1)
    finally:
        daemon.stdin.close()
        daemon.wait()
        daemon.stdout.close()
