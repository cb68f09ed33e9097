"""Prepare servers for the cases, ours and Java's alike, and read what the servers keep afterwards."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.integration.raw_client import properties, pull_ext, send_ext
from tests.interop.peers import ask
from tests.waits import eventually

from cometmq.protocol.messages.ids import UniqueIdGenerator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEND, PULL, COMMIT, MAKE_TOPIC, TOPICS, MAKE_GROUP, GROUPS, OFFSETS = (
    10,
    11,
    15,
    17,
    21,
    200,
    201,
    43,
)
KV, CLUSTERS = 101, 106
CLUSTER, BROKER, QUEUES = "DefaultCluster", "broker-a", 4
COUNT = 8
BORN: Final = 1_700_000_000_000
_FOUND: Final = 0
# The same messages everywhere, so that their ids need no mask.
_ids = UniqueIdGenerator(
    bytes((127, 0, 0, 1)), now_ms=lambda: int(time.time() * 1000), randbytes=os.urandom
)
UNIQUE_IDS: Final = [_ids.next() for _ in range(COUNT)]


@dataclass
class Place:
    """One cluster as the cases see it: where it is, and the words for their arguments."""

    namesrv: str
    words: dict[str, str] = field(default_factory=dict)

    @property
    def broker(self) -> str:
        return self.words["broker"]

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> bytes:
        """Ask the broker, and return the body of its answer, which must be a success."""
        answer, said = ask(self.broker, code, ext, body)
        assert answer == 0, (code, answer, said[:500])
        return said

    def make_topic(self, topic: str, queues: int = QUEUES) -> None:
        ext = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicSysFlag": "0"}
        ext |= {"readQueueNums": str(queues), "writeQueueNums": str(queues), "order": "false"}
        self.ask(MAKE_TOPIC, ext | {"topicFilterType": "SINGLE_TAG"})

    def make_group(self, group: str) -> None:
        self.ask(MAKE_GROUP, body=json.dumps({"groupName": group}).encode())

    def send(self, topic: str, index: int) -> str:
        """Send message `index` to queue index % 4; return its offset message id."""
        values = {
            "UNIQ_KEY": UNIQUE_IDS[index],
            "KEYS": f"k-{index} all-k",
            "TAGS": "AB"[index // QUEUES % 2],
            "WAIT": "true",
        }
        body = f"body {index} äöü".encode()
        sent = send_ext(
            topic, queueId=index % QUEUES, properties=properties(values), bornTimestamp=BORN
        )
        self.ask(SEND, sent, body)
        offset = index // QUEUES
        # A Java broker puts a message into its queue a little later.
        pull = pull_ext(topic, queueId=index % QUEUES, queueOffset=offset)
        _, record = eventually(partial(ask, self.broker, PULL, pull), lambda a: a[0] == _FOUND)
        # The place in the log is the eighth field of a record; see docs/reference/disk.md.
        address, _, port = self.broker.partition(":")
        octets = bytes(int(part) for part in address.split("."))
        return (octets + int(port).to_bytes(4, "big") + record[28:36]).hex().upper()

    def fill(self, topic: str) -> list[str]:
        """Send two messages to each queue, of tag A and of tag B; return their offset ids."""
        self.make_topic(topic)
        return [self.send(topic, index) for index in range(COUNT)]

    def commit(self, group: str, topic: str, offset: int) -> None:
        for queue in range(QUEUES):
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
            self.ask(COMMIT, ext | {"commitOffset": str(offset)})


def place(namesrv: str, line: int, scenario: str, directory: Path) -> Place:
    """Return the place behind a name server, with the words of one scenario."""
    directory.mkdir(parents=True, exist_ok=True)
    code, body = ask(namesrv, CLUSTERS)
    assert code == 0
    address = re.search(r"127\.0\.0\.1:\d+", body.decode())
    assert address is not None, body
    words = {
        "cluster": CLUSTER,
        "name": BROKER,
        "broker": address.group(),
        "namesrv": namesrv,
        "topic": f"mqadmin-orders-{line}",
        "group": f"mqadmin-billing-{line}",
        "new": f"mqadmin-{scenario}-{line}",
        "dir": str(directory),
        "unique": UNIQUE_IDS[3],
        "absent": _ids.next(),
    }
    return Place(namesrv, words)


def kept(at: Place) -> dict[str, Any]:
    """Return what the servers keep of the scenario's names: topics, groups, offsets, settings."""
    new = at.words["new"]
    topics = json.loads(at.ask(TOPICS))["topicConfigTable"]
    groups = json.loads(at.ask(GROUPS))["subscriptionGroupTable"]
    # Java writes numbers as keys without quotation marks.
    text = re.sub(r"([{,])(\d+):", r'\1"\2":', at.ask(OFFSETS).decode())
    offsets = json.loads(text)["offsetTable"]
    found: dict[str, Any] = {
        "topics": {name: config for name, config in topics.items() if new in name},
        "groups": {name: config for name, config in groups.items() if new in name},
        "offsets": {name: rows for name, rows in offsets.items() if new in name},
    }
    for namespace, key in (("ORDER_TOPIC_CONFIG", new), (f"{new}-space", "key")):
        found[namespace] = ask(at.namesrv, KV, {"namespace": namespace, "key": key})[0]
    return found


def keeps_other(at: Place, java: Place, line: int) -> Iterator[str]:
    """Say what our servers keep of the scenario's names otherwise than Java's of a release line."""
    ours, measure = kept(at), kept(java)
    for name, value in measure.items():
        mine = ours[name]
        if name in ("topics", "groups"):
            if line == 4:
                # A broker of 4.9 forgets that a topic is an ordered one, and has fewer fields.
                for config in value.values():
                    config.pop("order", None)
            mine = {
                key: {part: config.get(part) for part in value.get(key, config)}
                for key, config in mine.items()
            }
        if mine != value:
            yield f"our servers keep {name} {mine}, Java's {value}"
