"""The listener that says how far streams are behind."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import Message, Producer, SimpleConsumer
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.model.queue import MessageQueue
from cometmq.spark.lag import MAX_QUERIES, LagListener, group_lag
from cometmq.testing import Cluster

RUN = "00000000-0000-0000-0000-%012d"


class Event:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def progressed(
    run: int, name: str | None, ends: dict[str, int] | str, latest: dict[str, int] | str | None
) -> Event:
    def table(offsets: dict[str, int] | str | None) -> Any:
        if isinstance(offsets, str):
            return offsets
        return None if offsets is None else json.dumps({"orders": {"broker-a": offsets}})

    source = {
        "description": "PythonMicroBatchStream",
        "startOffset": None,
        "endOffset": table(ends),
        "latestOffset": table(latest),
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "metrics": {},
    }
    files = {**source, "endOffset": '{"logOffset": 3}', "latestOffset": '{"t": {"0": 9}}'}
    reported = {
        "id": RUN % 0,
        "runId": RUN % run,
        "name": name,
        "timestamp": "2026-11-23T11:00:00.000Z",
        "batchId": 5,
        "batchDuration": 1,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "sources": [source, files],
        "sink": {"description": "x", "numOutputRows": 1, "metrics": {}},
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "observedMetrics": {},
    }
    return Event(progress=StreamingQueryProgress.fromJson(reported))


def test_lag_by_queue_as_numbers_and_as_lines() -> None:
    lag = LagListener()
    lag.onQueryProgress(progressed(1, "archive", {"0": 17, "1": 5}, {"0": 20, "1": 5, "2": 7}))
    queues = [MessageQueue("orders", "broker-a", at) for at in range(3)]
    # A queue that no batch has joined yet counts from where it will begin, which is not known.
    assert lag.queues("archive") == dict(zip(queues, (3, 0, 0), strict=True))
    lines = lag.lines().splitlines()
    place = 'broker="broker-a",query="archive",queue="0",topic="orders"'
    assert f"cometmq_spark_lag_messages{{{place}}} 3.0" in lines
    assert f"cometmq_spark_next_offset{{{place}}} 17.0" in lines
    assert 'cometmq_spark_batch_id{query="archive"} 5.0' in lines
    assert 'cometmq_spark_batch_timestamp_seconds{query="archive"} 1.7954316e+09' in lines
    assert lag.queues("another") == {}


def test_a_query_without_a_name_goes_by_its_id_and_leaves_when_it_ends() -> None:
    lag = LagListener()
    lag.onQueryProgress(progressed(1, None, {"0": 1}, {"0": 2}))
    assert [found.name for found in lag.queries()] == [RUN % 0]
    lag.onQueryTerminated(Event(runId=RUN % 1))
    assert lag.queries() == []


def test_a_query_that_was_started_again_before_its_end_was_told_has_one_line() -> None:
    lag = LagListener()
    lag.onQueryProgress(progressed(1, "archive", {"0": 1}, {"0": 9}))
    lag.onQueryProgress(progressed(2, "archive", {"0": 7}, {"0": 9}))
    lines = [line for line in lag.lines().splitlines() if "lag_messages{" in line]
    assert [line.split()[-1] for line in lines] == ["2.0"]
    assert list(lag.queues("archive").values()) == [2]


def test_sources_of_others_are_left_out() -> None:
    lag = LagListener()
    lag.onQueryProgress(progressed(1, "files", {}, None))
    assert lag.queries() == []


def test_the_lag_of_a_store_is_in_bytes_of_its_log() -> None:
    lag = LagListener()
    reached = json.dumps({"commitLog": 700, "marks": [[600, 100, "ab"]]})
    lag.onQueryProgress(progressed(1, "copy", reached, json.dumps({"commitLog": 1000})))
    (found,) = lag.stores()
    assert (found.name, found.position, found.bytes_behind) == ("copy", 700, 300)
    assert lag.queries() == []
    lines = lag.lines().splitlines()
    assert 'cometmq_spark_lag_bytes{query="copy"} 300.0' in lines
    assert 'cometmq_spark_batch_id{query="copy"} 5.0' in lines
    lag.onQueryTerminated(Event(runId=RUN % 1))
    assert lag.stores() == []


def test_of_two_stores_the_one_that_is_further_behind_is_shown() -> None:
    lag = LagListener()
    event: Any = progressed(1, "both", '{"commitLog": 700}', '{"commitLog": 1000}')
    near: Any = progressed(1, "both", '{"commitLog": 40}', '{"commitLog": 50}')
    event.progress.sources.append(near.progress.sources[0])
    lag.onQueryProgress(event)
    assert [found.bytes_behind for found in lag.stores()] == [300]


def test_queries_without_end_are_bounded() -> None:
    lag = LagListener()
    for run in range(MAX_QUERIES + 5):
        lag.onQueryProgress(progressed(run, f"q{run}", {"0": 1}, {"0": 2}))
    assert len(lag.queries()) == MAX_QUERIES
    assert lag.queries()[-1].name == f"q{MAX_QUERIES + 4}"


def test_prometheus_can_scrape_it() -> None:
    lag = LagListener()
    lag.onQueryProgress(progressed(1, "archive", {"0": 1}, {"0": 2}))
    server, thread = lag.serve(0)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert b"cometmq_spark_lag_messages" in answer.read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


@pytest.mark.parametrize("namespace", [None, "ns1"])
def test_the_lag_of_a_group_that_pops_says_what_is_in_flight(namespace: str | None) -> None:
    options = {} if namespace is None else {"namespace": namespace}
    with Cluster() as cluster:
        namesrv = str(cluster.namesrv)
        with (
            Producer(
                "filler", namesrv=namesrv, namespace=namespace, send_timeout_ms=SEND_WAIT_MS
            ) as producer,
            SimpleConsumer("billing", namesrv=namesrv, namespace=namespace) as consumer,
        ):
            queue = MessageQueue("orders", "broker-a", 0)
            for number in range(5):
                producer.send(Message(queue.topic, b"%d" % number), queue=queue)
            consumer.subscribe(queue.topic)
            received = eventually(lambda: consumer.receive(3, invisible_ms=60_000))
            received[0].ack()
            topic = queue.topic if namespace is None else f"{namespace}%{queue.topic}"
            # A client sends acknowledgements together, a moment later.
            lag = eventually(
                lambda: group_lag("billing", namesrv=namesrv, **options),
                lambda lag: lag.progress.lag_in(topic) == 4,
            )
        assert lag.progress.in_flight_in(topic) == len(received) - 1
        assert lag.popped is not None
        assert [(at.topic, at.in_flight) for at in lag.popped] == [(topic, len(received) - 1)]


def test_the_lag_of_a_group_names_what_does_not_fit() -> None:
    with pytest.raises(IllegalArgumentError, match="function group_lag has no option nameserver"):
        group_lag("billing", nameserver="127.0.0.1:9876")
    with Cluster() as cluster, pytest.raises(RemoteError, match="nobody"):
        group_lag("nobody", namesrv=str(cluster.namesrv))
