from __future__ import annotations

import subprocess
import sys

from tests.waits import PROCESS_WAIT_S

CODE = """
import resource
from cometmq.runtime.host.process_limits import raise_open_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
print(raise_open_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))
print(raise_open_file_limit())
"""


def test_the_limit_on_open_files_is_raised_to_what_is_allowed() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        timeout=PROCESS_WAIT_S,
    )
    assert [line for line in shown.stdout.splitlines() if "limit=" not in line] == [
        "512 (512, 512)",
        "512",
    ]
