"""The commands of docs/security.md run as they stand: users, policies and a change of password."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.waits import PROCESS_WAIT_S, WAIT_S

from cometmq.testing.ports import HeldPort

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = (ROOT / "docs" / "security.md").read_text()

_BEFORE: Final = "set -u\ntrap 'kill $BROKER $NAMESRV 2>/dev/null; wait' EXIT\n"
_STARTED: Final = f"""
for _ in $(seq {int(WAIT_S) * 2}); do
    cometmq admin clusterList -n 127.0.0.1:9876 --accessKey admin --secretKey choose-a-long-one \\
        2>/dev/null | grep -q broker-a && break
    sleep 0.5
done
set -e
"""
_SEND: Final = "python send.py 2>&1 | tail -1 >"


def blocks(heading: str, language: str) -> list[str]:
    """Return the blocks of code in the section of a heading."""
    section = GUIDE.split(f"\n### {heading}\n")[1].split("\n### ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def test_the_way_from_an_empty_directory_to_a_new_password_works_as_it_is_typed(
    tmp_path: Path,
) -> None:
    first = "From an empty directory to a first producer"
    start, users = blocks(first, "sh")
    [sender] = blocks(first, "py")
    [change] = blocks("Change a password", "sh")
    sender = sender.replace("producer.send(", "print(producer.send(").replace('..."))', '...")))')
    script = "\n".join(
        [
            *(_BEFORE, start, _STARTED, users, _SEND + "first", change, _SEND + "old"),
            "sed -i s/a-long-password/a-new-password/ send.py",
            _SEND + "new",
        ]
    )
    script = script.replace("brokerName=", "listenPort=10911\nbrokerName=")
    script = script.replace("kvConfigPath=", "listenPort=9876\nkvConfigPath=")
    with ExitStack() as held:
        broker = held.enter_context(HeldPort((1,))).port
        name_server = held.enter_context(HeldPort()).port
        script = script.replace("10911", str(broker)).replace("9876", str(name_server))
        (tmp_path / "send.py").write_text(sender.replace("9876", str(name_server)))
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            input="choose-a-long-one\n",
            capture_output=True,
            text=True,
            timeout=PROCESS_WAIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "User:billing" in done.stdout
    said = {name: (tmp_path / name).read_text() for name in ("first", "old", "new")}
    assert "SEND_OK" in said["first"], done.stdout + done.stderr
    assert "AccessDeniedError" in said["old"]
    assert "SEND_OK" in said["new"]
    readable = [path for path in tmp_path.glob("*.conf") if path.stat().st_mode & 0o077]
    assert not readable
