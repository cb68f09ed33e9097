"""The examples, run as their first lines say."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S

from cometmq import Message, Producer
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


def test_the_idempotent_consumer_needs_no_arguments_but_the_name_server(tmp_path: Path) -> None:
    with Cluster() as cluster, Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message("orders", b"espresso", keys=["O-1"]))
        with subprocess.Popen(
            [sys.executable, "-u", str(EXAMPLES / "idempotent_consumer.py"), cluster.namesrv],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        ) as consumer:
            try:
                assert consumer.stdout is not None
                said = next(line for line in consumer.stdout if line.startswith("booked"))
                consumer.send_signal(signal.SIGTERM)
                assert consumer.wait(PROCESS_WAIT_S) == 0
            finally:
                consumer.kill()
    assert "O-1" in said
    assert (tmp_path / "done.db").exists()
