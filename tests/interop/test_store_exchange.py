"""A store directory that one broker wrote and closed is opened by the other, and goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.golden import golden
from tests.interop.clients import CometClient, Event, JavaClient
from tests.interop.comet_servers import CometBroker
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

TOPICS = ("tagged", "batched", "compressed", "from-comet")
GROUP = "audit"
# Small files: the messages of one stage fill several of each kind.
FILES = {"mappedFileSizeConsumeQueue": "400", "maxHashSlotNum": "500", "maxIndexNum": "2000"}
COMMIT_LOG_FILE_BYTES = 32768

# Set by the broker or the client that delivers, not stored.
DELIVERY_PROPERTIES = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}

Fields = dict[str, Any]


def open_broker(kind: type[JavaBroker], namesrv: Namesrv, store: Path, directory: Path) -> Any:
    """A broker of one kind on the store."""
    directory.mkdir()
    return kind(
        namesrv,
        broker_name="exchanged",
        directory=directory,
        store=store,
        commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
        conf=FILES,
    )


def produce(namesrv: Namesrv, first: int) -> None:
    """One stage of messages: 30 in each topic, by several clients, from index `first` on."""
    java, comet = JavaClient(5), CometClient()
    base: dict[str, Any] = {"namesrv": namesrv, "count": 30, "first": first}
    java.produce(**base, topic="tagged", mode="sync", size=400, tags="TagA,TagB,标签")
    java.produce(**base, topic="batched", mode="batch", size=300)
    java.produce(**base, topic="compressed", mode="async", size=5000)
    comet.produce(**base, topic="from-comet", mode="sync", size=500, tags="x,y")


def read_all(namesrv: Namesrv) -> dict[tuple[str, int, int], Fields]:
    """Every message by topic, queue and offset, as the Java client pulls it."""
    events = JavaClient(5).pull(namesrv=namesrv, topic=",".join(TOPICS))
    return {place(event): stored(event) for event in events}


def stored(event: Event) -> Fields:
    """The store's facts of a message, without what its delivery adds."""
    properties = {
        name: value
        for name, value in event["properties"].items()
        if name not in DELIVERY_PROPERTIES
    }
    return {**event, "properties": properties}


def resume(namesrv: Namesrv, expected: int) -> set[int]:
    """The indexes that the group receives now."""
    events = CometClient().run(
        "consume", namesrv=namesrv, topic="tagged", group=GROUP, expected=expected
    )
    return {int(event["properties"]["index"]) for event in events if event["event"] == "message"}


@pytest.mark.parametrize(
    "order",
    [(CometBroker, JavaBroker, CometBroker), (JavaBroker, CometBroker, JavaBroker)],
    ids=lambda order: "-to-".join(kind.name for kind in order),
)
def test_every_message_survives_the_exchange(
    comet_namesrv: Namesrv, tmp_path: Path, order: tuple[type[JavaBroker], ...]
) -> None:
    need("java", "mvn")
    store = tmp_path / "store"
    known: dict[tuple[str, int, int], Fields] = {}
    for stage, kind in enumerate(order):
        assert not (store / "abort").exists(), "the broker before stopped cleanly"
        with open_broker(kind, comet_namesrv, store, tmp_path / f"stage-{stage}") as broker:
            if stage:
                assert read_all(comet_namesrv) == known
            produce(comet_namesrv, first=30 * stage)
            # The group's offsets came along: it receives this stage's messages only.
            assert resume(comet_namesrv, 30) == set(range(30 * stage, 30 * stage + 30))
            known_before, known = known, read_all(comet_namesrv)
            assert known_before.items() <= known.items()
            assert len(known) == len(TOPICS) * 30 * (stage + 1)
            if stage < 2:
                broker.stop()
    assert len(list((store / "commitlog").iterdir())) > 2, "the commit log rolled"
    assert len(list((store / "consumequeue" / "tagged" / "0").iterdir())) > 1


def test_a_golden_store_of_the_java_broker_is_served(
    comet_namesrv: Namesrv, tmp_path: Path
) -> None:
    need("java", "mvn")
    written = golden.named("store").input
    conf = dict(written["conf"])
    with CometBroker(
        comet_namesrv,
        store=golden.unpack_store(tmp_path),
        broker_name="golden",
        commit_log_file_bytes=int(conf.pop("mappedFileSizeCommitLog")),
        conf=conf,
    ):
        topics = sorted({message["topic"] for message in written["messages"]})
        events = JavaClient(5).pull(namesrv=comet_namesrv, topic=",".join(topics))
    served = {place(event): stored({**event, "brokerName": ""}) for event in events}
    expected = {
        place(message): stored({**message, "event": "message", "brokerName": ""})
        for message in written["messages"]
    }
    assert served == expected


def place(message: Fields) -> tuple[str, int, int]:
    """Where a message lies."""
    return message["topic"], message["queueId"], message["queueOffset"]
