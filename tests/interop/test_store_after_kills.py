"""A store that one broker wrote, until it was stopped or killed, has every message in the other: the
same bytes at the same offsets, found by key and by time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.integration.raw_client import RawClient, batch_body, properties, pull_ext, send_ext
from tests.interop.comet_servers import CometBroker
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.waits import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SEND, BATCH, PULL, QUERY, SEARCH, CREATE_GROUP = 310, 320, 11, 12, 29, 200
EVER = (1 << 63) - 1
# The messages of one stage fill more than one file of each kind.
CONF = {"mappedFileSizeConsumeQueue": "400", "maxHashSlotNum": "10", "maxIndexNum": "60"}
COMMIT_LOG_FILE_BYTES = 32768
SINGLE = ("letters", "numbers")
BATCHED = "batched"
QUEUES = [(topic, queue_id) for topic in (*SINGLE, BATCHED) for queue_id in (0, 1)]
STAGE = 12


class Stored(NamedTuple):
    """A message as it lies in the log, and the keys it was sent with."""

    record: bytes
    keys: tuple[str, str]

    @property
    def place(self) -> int:
        return int.from_bytes(self.record[28:36], "big")

    @property
    def store_timestamp(self) -> int:
        # Both hosts are of IPv4.
        return int.from_bytes(self.record[56:64], "big")


# By topic, queue id and queue offset.
Known = dict[tuple[str, int, int], Stored]
Keys = dict[tuple[str, int, int], tuple[str, str]]


def texts_of(number: int) -> tuple[str, tuple[str, str]]:
    """The properties of a message, and its key and unique key."""
    keys = (f"k{number}", f"{number:032X}")
    return (
        properties({"KEYS": f"{keys[0]} shared", "TAGS": f"t{number % 3}", "UNIQ_KEY": keys[1]}),
        keys,
    )


def produce(client: RawClient, stage: int) -> Keys:
    """Singles and batches into every queue."""
    sent: Keys = {}
    numbers = iter(range(1000 * stage, 1000 * stage + 1000))
    for topic, queue_id in QUEUES:
        messages = [texts_of(next(numbers)) for _ in range(STAGE)]
        first = len(sent)
        if topic == BATCHED:
            body = batch_body((b"b" * 300, texts.encode()) for texts, _ in messages)
            ext = send_ext(topic, letters=True, queueId=queue_id, batch="true")
            answer = client.ask(BATCH, ext, body)
            assert answer.code == 0, answer.remark
            start = int(answer.ext["queueOffset"])
            sent |= {(topic, queue_id, start + i): keys for i, (_, keys) in enumerate(messages)}
        else:
            for texts, keys in messages:
                ext = send_ext(topic, letters=True, queueId=queue_id, properties=texts)
                answer = client.ask(SEND, ext, b"s" * 400)
                assert answer.code == 0, answer.remark
                sent[topic, queue_id, int(answer.ext["queueOffset"])] = keys
            # So that not all messages are of one time.
            client.silent(0.02)
        assert len(sent) == first + STAGE, "an offset is given twice"
    return sent


def records_of(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(data[at : at + size])
        at += size
    return found


def read_all(client: RawClient) -> dict[tuple[str, int, int], bytes]:
    """Every message of every queue, by offset."""
    client.ask(CREATE_GROUP, body=b'{"groupName":"raw-group"}')
    found: dict[tuple[str, int, int], bytes] = {}
    for topic, queue_id in QUEUES:
        offset = 0
        while True:
            ext = pull_ext(topic, queueId=queue_id, queueOffset=offset)
            answer = client.ask(PULL, ext)
            if answer.code != 0:
                break
            for record in records_of(answer.body):
                queue_offset = int.from_bytes(record[20:28], "big")
                found[topic, queue_id, queue_offset] = record
            offset = int(answer.ext["nextBeginOffset"])
    return found


def has_all(client: RawClient, sent: Keys) -> bool:
    return read_all(client).keys() >= sent.keys()


def places_by_key(client: RawClient, topic: str, key: str) -> list[int]:
    ext = {"topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": EVER}
    answer = client.ask(QUERY, ext)
    assert answer.code in (0, 22), answer.remark
    return [int.from_bytes(record[28:36], "big") for record in records_of(answer.body)]


def offset_by_time(client: RawClient, queue: tuple[str, int], time: int, boundary: str) -> int:
    ext = {"topic": queue[0], "queueId": queue[1], "timestamp": time, "boundaryType": boundary}
    answer = client.ask(SEARCH, ext)
    assert answer.code == 0, answer.remark
    return int(answer.ext["offset"])


def check(client: RawClient, known: Known, *, all_keys: bool) -> None:
    """Every message by offset, by both of its keys and by time."""
    assert read_all(client) == {at: stored.record for at, stored in known.items()}
    for (topic, _, _), stored in known.items():
        for key in stored.keys:
            # A Java broker that recovers indexes the last message that its index knows once more.
            found = set(places_by_key(client, topic, key))
            assert found == {stored.place} or (not all_keys and not found), (topic, key)
    times: dict[tuple[str, int], dict[int, list[int]]] = {}
    for (topic, queue_id, offset), stored in known.items():
        of_time = times.setdefault((topic, queue_id), {})
        of_time.setdefault(stored.store_timestamp, []).append(offset)
    for queue, by_time in times.items():
        for time, offsets in by_time.items():
            assert offset_by_time(client, queue, time, "lower") == min(offsets)
            assert offset_by_time(client, queue, time, "upper") == max(offsets)


def wait_until_indexed(client: RawClient, known: Known) -> None:
    """The index is built behind the answers."""
    (topic, _, _), last = max(known.items(), key=lambda item: item[1].place)
    eventually(lambda: last.place in places_by_key(client, topic, last.keys[0]))


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize(
    "order",
    [(CometBroker, JavaBroker, CometBroker), (JavaBroker, CometBroker, JavaBroker)],
    ids=lambda order: "-to-".join(kind.name for kind in order),
)
def test_every_message_is_found_by_offset_by_key_and_by_time(
    comet_namesrv: Namesrv, tmp_path: Path, order: tuple[type[JavaBroker], ...], stop: str
) -> None:
    need("java", "mvn")
    store = tmp_path / "store"
    known: Known = {}
    for stage, kind in enumerate(order):
        directory = tmp_path / f"broker{stage}"
        directory.mkdir()
        with (
            kind(
                comet_namesrv,
                broker_name="killed",
                directory=directory,
                store=store,
                commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
                conf=CONF,
            ) as broker,
            RawClient(broker.address) as client,
        ):
            # After a kill Java indexes only what it dispatches again.
            all_keys = stop == "clean" or kind is CometBroker
            if known:
                check(client, known, all_keys=all_keys)
            sent = produce(client, stage)
            # A Java broker puts messages into their queues behind the answers.
            eventually(partial(has_all, client, sent))
            read = read_all(client)
            assert read.keys() == known.keys() | sent.keys()
            known |= {at: Stored(read[at], keys) for at, keys in sent.items()}
            wait_until_indexed(client, known)
            check(client, known, all_keys=all_keys)
            if stop == "kill":
                broker.kill()
            elif stage < 2:
                broker.stop()
    assert len(list((store / "commitlog").iterdir())) > 3
    assert len(list((store / "index").iterdir())) > 2
