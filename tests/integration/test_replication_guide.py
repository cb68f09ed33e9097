"""The commands of docs/replication.md run as they stand: a master, a slave, and the switch by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

from tests.waits import PROCESS_WAIT_S, WAIT_S

from cometmq.testing.ports import HeldPort

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "replication.md").read_text()
BLOCKS = re.findall(r"^ *```sh\n(.*?)^ *```$", GUIDE, re.MULTILINE | re.DOTALL)

_BEFORE = f"""
set -u
trap 'kill $MASTER $SLAVE $NAMESRV 2>/dev/null; wait' EXIT
in_step() {{
    for _ in $(seq {int(WAIT_S) * 2}); do
        cometmq admin haStatus -n 127.0.0.1:9876 -b $1 2>/dev/null | grep -q 'InSyncSlaveNum *1' && return
        sleep 0.5
    done
    exit 1
}}
"""
_SENT = """
in_step 127.0.0.1:10911
cometmq admin updateTopic -n 127.0.0.1:9876 -b 127.0.0.1:10911 -t orders
cometmq admin sendMessage -n 127.0.0.1:9876 -t orders -p espresso
"""
_AFTER = """
in_step 127.0.0.1:10921
cometmq admin topicStatus -n 127.0.0.1:9876 -t orders
cometmq admin haStatus -n 127.0.0.1:9876 -b 127.0.0.1:10921
"""


def test_the_switch_of_the_guide_works_as_it_is_typed(tmp_path: Path) -> None:
    configure, start, look, stop, promote, compare, demote = map(textwrap.dedent, BLOCKS)
    wait_for_port = "until (: < /dev/tcp/127.0.0.1/10921) 2>/dev/null; do sleep 0.1; done\n"
    script = "\n".join(
        [_BEFORE, configure, start, _SENT, look, stop, promote, wait_for_port, compare, demote]
    )
    script += _AFTER
    with ExitStack() as held:
        for broker, slaves in (("10911", "10912"), ("10921", "10922")):
            port = held.enter_context(HeldPort((1,))).port
            script = script.replace(broker, str(port)).replace(slaves, str(port + 1))
        name_server = held.enter_context(HeldPort()).port
        script = script.replace("9876", str(name_server))
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=PROCESS_WAIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it needs no mending" in done.stdout
    assert "SEND_OK" in done.stdout
    [end] = set(
        re.findall(r"^MasterCommitLogMaxOffset +(\d+)$", done.stdout.split("mending")[1], re.M)
    )
    assert int(end) > 0
