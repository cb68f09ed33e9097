"""Messages that wait in a store when it changes hands, between a Java broker and ours."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.integration.raw_client import RawClient, properties, pull_ext, send_ext
from tests.interop.at_once import at_once, made
from tests.interop.comet_servers import CometBroker
from tests.interop.conftest import need
from tests.interop.peers import Java53Broker, JavaBroker
from tests.waits import JVM_WAIT_S, eventually

from cometmq.protocol.messages.record import decode_records
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SEND, PULL, RECALL = 10, 11, 370
TOPIC = "exchanged-delays"
# Long enough for one broker to stop and the other to start, also where ten processes share a core: a
# Java broker delivers at once what is due when it opens the store, before it has read that it was
# recalled.
LATER_S = 45
CONF = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "messageDelayLevel": f"1s {LATER_S}s",
}


ORDERS: dict[str, tuple[type[JavaBroker], type[JavaBroker]]] = {
    "to-java": (CometBroker, JavaBroker),
    # Java's brokers before 5.4 look for another key of a recall.
    "to-java-5.3": (CometBroker, Java53Broker),
    "from-java": (JavaBroker, CometBroker),
}


def open_broker(
    kind: type[JavaBroker], namesrv: Namesrv, store: Path, directory: Path, conf: dict[str, str]
) -> JavaBroker:
    directory.mkdir()
    return kind(namesrv, broker_name="exchanged", directory=directory, store=store, conf=conf)


def send(client: RawClient, body: str, extra: dict[str, str]) -> str | None:
    """Send a message; returns its recall handle."""
    text = properties({"UNIQ_KEY": f"{body:0>32}", **extra})
    now_ms = int(time.time() * 1000)
    answer = client.ask(SEND, send_ext(TOPIC, properties=text, bornTimestamp=now_ms), body.encode())
    assert answer.code == 0, answer.remark
    return answer.ext.get("recallHandle")


def delivered(client: RawClient) -> list[str]:
    found: list[str] = []
    offset = 0
    while True:
        answer = client.ask(PULL, pull_ext(TOPIC, queueOffset=offset, consumerGroup="looker"))
        if answer.code != 0:
            return found
        found += [record.body.decode() for record in decode_records(answer.body)]
        offset = int(answer.ext["nextBeginOffset"])


def wait_for(client: RawClient, count: int) -> list[str]:
    return eventually(
        lambda: delivered(client),
        lambda found: len(found) >= count,
        wait_s=JVM_WAIT_S,
        pause_s=0.5,
    )


def first_stage(client: RawClient) -> None:
    """Some messages that are delivered here, and some that wait when the broker stops."""
    for number in range(5):
        send(client, f"level-now-{number}", {"DELAY": "1"})
        send(client, f"timer-now-{number}", {"TIMER_DELAY_SEC": "1"})
    wait_for(client, 10)
    for number in range(5):
        send(client, f"level-later-{number}", {"DELAY": "2"})
        handle = send(client, f"timer-later-{number}", {"TIMER_DELAY_SEC": str(LATER_S + number)})
        if number == 2:
            answer = client.ask(RECALL, {"topic": TOPIC, "recallHandle": handle})
            assert answer.code == 0, answer.remark


def exchange(first: type[JavaBroker], second: type[JavaBroker], directory: Path) -> list[str]:
    """Return what both brokers delivered of a store that goes from the first to the second."""
    store = directory / "store"
    conf = {**CONF, "appendTopicForTimerDeleteKey": str(second is Java53Broker).lower()}
    with Cluster(brokers=0) as names:
        with (
            open_broker(first, names.namesrv, store, directory / "first", conf) as broker,
            RawClient(broker.address) as client,
        ):
            first_stage(client)
            broker.stop()
        with (
            open_broker(second, names.namesrv, store, directory / "second", conf) as broker,
            RawClient(broker.address) as client,
        ):
            wait_for(client, 19)
            send(client, "last", {"TIMER_DELAY_SEC": "4"})
            return wait_for(client, 20)


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[list[str]]]]:
    """All exchanges at once: most of each is waiting for what is due later."""
    need("java", "mvn")
    directory = tmp_path_factory.mktemp("exchanges")

    def run(case: str) -> list[str]:
        return exchange(*ORDERS[case], made(directory / case))

    with at_once(request, run, places=3) as runs:
        yield runs


@pytest.mark.parametrize("case", ORDERS)
def test_what_waits_comes_once_from_whichever_broker_has_the_store(
    runs: dict[str, Future[list[str]]], case: str
) -> None:
    found = runs[case].result()
    expected = [
        f"{kind}-{when}-{number}"
        for kind in ("level", "timer")
        for when in ("now", "later")
        for number in range(5)
    ]
    expected.remove("timer-later-2")
    assert Counter(found) == Counter([*expected, "last"])
