"""Where secrets are not: plans, offsets, checkpoints, event logs, logs and errors of real queries."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.processes import QUICK_JAVA
from tests.spark.sink_rows import make_topic
from tests.spark.standalone import HOST, ROOT, StandaloneCluster
from tests.waits import SEND_WAIT_MS

from cometmq import Credentials, Message, Producer
from cometmq.errors import IllegalArgumentError
from cometmq.spark.sink.options import SinkOptions
from cometmq.testing.cluster import Cluster

ACCESS_KEY = "access-key-of-the-query"
SECRET = "the-secret-of-the-query"
TOKEN = "the-token-of-the-query"
# That somebody gives as an option all the same.
GIVEN_AWAY = "a-secret-as-an-option"
COUNT = 200
# More than Spark's own log of a driver: what its planning and streaming tell a developer.
LOGS = """
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%ex
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
logger.sql.name = org.apache.spark.sql
logger.sql.level = debug
logger.python.name = org.apache.spark.api.python
logger.python.level = debug
"""


@pytest.mark.timeout(900)
def test_no_trace_of_a_query_holds_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the driver and, by way of Spark's workers, of the executors.
    monkeypatch.setenv("TOKEN_OF_THE_TEST", TOKEN)
    secrets, traces = tmp_path / "secrets", tmp_path / "traces"
    for directory in (secrets, traces / "events", traces / "cluster"):
        directory.mkdir(parents=True)
    (traces / "log4j2.properties").write_text(LOGS)
    (secrets / "key").write_text(f"{SECRET}\n")
    with (
        Cluster(directory=tmp_path / "stores") as brokers,
        StandaloneCluster(traces / "cluster", workers=1) as workers,
    ):
        with Producer("filler", namesrv=brokers.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            for at in range(COUNT):
                producer.send(Message("orders", b"%d" % at))
        make_topic(brokers.namesrv, "orders-again")
        access = {
            "namesrv": brokers.namesrv,
            "accessKey": ACCESS_KEY,
            "secretKeyFile": str(secrets / "key"),
            "securityTokenEnv": "TOKEN_OF_THE_TEST",
        }
        shown = run_program(
            traces,
            {
                "master": workers.url,
                "config": config(traces),
                "access": access,
                "from": "orders",
                "to": "orders-again",
                "checkpoint": str(traces / "checkpoint"),
                "failing": {
                    "given away": {"secretKey": GIVEN_AWAY},
                    "no file": {"secretKeyFile": str(secrets / "none")},
                },
            },
        )
    assert shown["count"] == COUNT
    faults = shown["faults"]
    assert "give secretKeyFile" in faults["given away"]
    assert "secretKeyFile: the file" in faults["no file"]
    assert "cannot be read here" in faults["no file"]

    # What is looked through is what would show them.
    telling = {path.relative_to(traces).parts[0] for path in holding(traces, b"orders")}
    assert {"driver.log", "output.log", "events", "checkpoint"} <= telling
    assert any("work-0" in path.parts for path in holding(traces, b"Executor"))
    for secret in (SECRET, TOKEN, GIVEN_AWAY):
        assert list(holding(traces, secret.encode())) == []


def test_the_options_of_a_writer_travel_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET)
    given = {"namesrv": "127.0.0.1:9876", "accessKey": ACCESS_KEY, "topic": "orders"}
    given["checkpointLocation"] = str(tmp_path)
    with pytest.raises(
        IllegalArgumentError, match=r"the sink rocketmq .* give secretKeyFile"
    ) as reported:
        SinkOptions(given | {"secretKey": SECRET}, streaming=True)
    assert SECRET not in str(reported.value)
    options = SinkOptions(given | {"secretKeyFile": str(tmp_path / "key")}, streaming=True)
    travels = pickle.dumps(options)
    assert SECRET.encode() not in travels
    there = pickle.loads(travels).connecting.parameters()
    assert there["credentials"] == Credentials(ACCESS_KEY, SECRET)


def config(traces: Path) -> dict[str, str]:
    logs = traces / "log4j2.properties"
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": HOST,
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Dlog4j2.configurationFile={logs.as_uri()}",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (traces / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }


def run_program(traces: Path, given: dict[str, Any]) -> dict[str, Any]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
    with (traces / "driver.log").open("wb") as log:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.spark.secret_program", json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=ROOT,
            check=False,
        )
    output = ended.stdout.decode()
    assert ended.returncode == 0, output + (traces / "driver.log").read_text()[-4000:]
    (traces / "output.log").write_text(output)
    shown: dict[str, Any] = json.loads(output.splitlines()[-1])
    return shown


def holding(directory: Path, text: bytes) -> Iterator[Path]:
    """The files that have `text` in them."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and text in path.read_bytes():
            yield path
