"""The examples, run as their first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S

from cometmq.testing import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples"

# Runs the program that its first argument names, and has it wait for answers of a busy machine.
PATIENTLY = """
import runpy, sys
from tests.integration.patience import be_patient
be_patient()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("producer.py", "future: SEND_OK"),
        ("asyncio_clients.py", "100 orders sent and consumed"),
        ("delays_and_transactions.py", "received delayed O-1"),
        ("requests_and_polling.py", "asked for espresso: 2.40 for espresso"),
    ],
)
def test_an_example_runs(example: str, said: str) -> None:
    with Cluster() as cluster:
        done = subprocess.run(
            [sys.executable, "-c", PATIENTLY, str(EXAMPLES / example), cluster.namesrv],
            cwd=EXAMPLES.parent,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PROCESS_WAIT_S,
            check=True,
        )
    assert said in done.stdout
