"""A million messages each way leave nothing behind in a client's memory.

COMETMQ_MEMORY_MESSAGES says how many there are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop.comet_servers import CometBroker, CometNamesrv

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]

MESSAGES = int(os.environ.get("COMETMQ_MEMORY_MESSAGES", "1000000"))
# So that a run with fewer messages finds what one with more of them finds.
GROWTH_LIMIT_KIB = min(10_000_000, 50 * MESSAGES) // 1024
# A disk that other suites keep busy blocks flushes for seconds; that is not what is tested here.
PATIENT = {"osPageCacheBusyTimeOutMills": "60000"}


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
def test_memory_does_not_grow_with_messages(
    tmp_path: Path, face: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        CometNamesrv(directory=tmp_path / "n") as namesrv,
        CometBroker(namesrv.address, directory=tmp_path / "b", conf=PATIENT),
    ):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.crash.client_memory",
                namesrv.address,
                face,
                str(MESSAGES),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"sent"')]
    held = [line["anonymous_kib"] for line in lines]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{face}: {lines[-1]['sent']:,} messages each way, MiB by tenths: "
            f"{', '.join(f'{kib / 1024:.1f}' for kib in held)} "
        )
    # The first tenth is the warm-up.
    assert max(held[1:]) - held[0] < GROWTH_LIMIT_KIB
