"""Count how often an idle broker wakes.

    python -m benchmarks.idle_wakes

A broker process gets one message, and is left alone until all is on disk, 70 s with the usual
settings. Then the voluntary context switches of its threads are counted for ten seconds, each of
which is a wait that ended.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.frames import ControlConnection
from benchmarks.peers import CometPeer

REST_S: Final = 75.0
COUNTED_S: Final = 10.0


def switches(pid: int) -> dict[str, int]:
    """Return the voluntary context switches so far, by thread."""
    found: dict[str, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = f"{task.name} {(task / 'comm').read_text().strip()}"
        lines = (task / "status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("voluntary_ctxt_switches"))
        found[name] = int(line.split()[1])
    return found


def main() -> None:
    root = Path(tempfile.mkdtemp(prefix="idle-wakes-"))
    try:
        with CometPeer(root / "peer", conf={}) as peer:
            with ControlConnection(peer.address) as connection:
                connection.send("idle", 0, 128)
            time.sleep(REST_S)
            before = switches(peer.pid)
            time.sleep(COUNTED_S)
            after = switches(peer.pid)
        rates = {name: (after[name] - before.get(name, 0)) / COUNTED_S for name in after}
        for name, rate in sorted(rates.items(), key=lambda each: -each[1]):
            print(f"{rate:8.1f} wakes a second  {name}")
        print(f"{sum(rates.values()):8.1f} in all")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
