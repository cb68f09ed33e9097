"""The index and the extensions of queues that one broker wrote are used and continued by the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.integration.raw_client import RawClient, properties, pull_ext, send_ext
from tests.interop.comet_servers import CometBroker
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.waits import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SEND, PULL, QUERY, CREATE_GROUP = 310, 11, 12, 200
# Stages of 20 messages with 3 keys each fill several files of the index.
CONF = {
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "10",
    "maxIndexNum": "25",
    "enableConsumeQueueExt": "true",
    "mappedFileSizeConsumeQueueExt": "40000",
}
STAGE = 20


def send(client: RawClient, number: int) -> int:
    texts = {
        "KEYS": f"k{number} n{number % 3}",
        "TAGS": f"t{number % 2}",
        "UNIQ_KEY": f"{number:032X}",
    }
    answer = client.ask(
        SEND, send_ext("keyed", letters=True, properties=properties(texts)), b"body-%d" % number
    )
    assert answer.code == 0, answer.remark
    return int(answer.ext["msgId"][16:], 16)


def query(client: RawClient, key: str) -> list[int]:
    answer = client.ask(
        QUERY,
        {
            "topic": "keyed",
            "key": key,
            "maxNum": 64,
            "beginTimestamp": 0,
            "endTimestamp": (1 << 63) - 1,
        },
    )
    assert answer.code in (0, 22), answer.remark
    return places(answer.body)


def places(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        found.append(int.from_bytes(data[at + 28 : at + 36], "big"))
        at += int.from_bytes(data[at : at + 4], "big")
    return found


def pull_tag(client: RawClient, tag: str) -> list[int]:
    client.ask(CREATE_GROUP, body=b'{"groupName":"raw-group"}')
    found: list[int] = []
    offset = 0
    while True:
        ext = pull_ext("keyed", subscription=tag, queueOffset=offset)
        answer = client.ask(PULL, ext)
        if answer.code not in (0, 20):
            return found
        found += places(answer.body)
        offset = int(answer.ext["nextBeginOffset"])


def wait_until_indexed(client: RawClient, sent: list[int]) -> None:
    """Java builds its index behind the answers, key by key."""
    last = len(sent) - 1
    eventually(lambda: query(client, f"k{last}") == [sent[last]])
    eventually(lambda: sent[last] in query(client, f"n{last % 3}"))


@pytest.mark.parametrize("first", [JavaBroker, CometBroker])
@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_an_index_goes_to_and_fro(
    comet_namesrv: Namesrv, tmp_path: Path, first: type[JavaBroker], stop: str
) -> None:
    need("java", "mvn")
    kinds = [JavaBroker, CometBroker] if first is JavaBroker else [CometBroker, JavaBroker]
    store = tmp_path / "store"
    sent: list[int] = []
    for stage, kind in enumerate([*kinds, kinds[0]]):
        directory = tmp_path / f"broker{stage}"
        directory.mkdir()
        with (
            kind(
                comet_namesrv,
                broker_name="indexed",
                directory=directory,
                store=store,
                commit_log_file_bytes=32768,
                conf=CONF,
            ) as broker,
            RawClient(broker.address) as client,
        ):
            check(client, sent, complete=stop == "clean" or kind is CometBroker)
            sent += [send(client, STAGE * stage + number) for number in range(STAGE)]
            wait_until_indexed(client, sent)
            check(client, sent, complete=stop == "clean" or kind is CometBroker)
            for tag in (0, 1):
                assert pull_tag(client, f"t{tag}") == sent[tag::2]
            if stop == "kill":
                broker.kill()
            elif stage < 2:
                broker.stop()
    assert len(list((store / "index").iterdir())) > 2


def check(client: RawClient, sent: list[int], *, complete: bool) -> None:
    """Every message is found by each of its keys, once. After a kill Java indexes only what it
    dispatches again.
    """
    for number, place in enumerate(sent):
        for key in (f"k{number}", f"{number:032X}"):
            found = query(client, key)
            assert place in found if complete else set(found) <= set(sent)
    if complete:
        for rest in range(3):
            wanted = sent[rest::3]
            assert set(query(client, f"n{rest}")) >= set(wanted[-64:])
