"""Topics and groups that one client makes hold up nobody else, and are there after a kill."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.integration.raw_client import RawClient, pull_ext, send_ext
from tests.waits import WAIT_S, eventually

from cometmq.broker.topics.journal import JournalFile
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.testing import Cluster

SEND, PULL, HEARTBEAT, SEND_BACK = 10, 11, 34, 36
SUCCESS, SERVICE_NOT_AVAILABLE = 0, 14
TOPIC_COUNT = 1_000


class Gate:
    """Holds up writes in the threads that write, and counts the writes that came."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(WAIT_S)


def hold_journal(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    """Run `before` in the journal's thread ahead of every write to the disk."""
    write, append = JournalFile.write, JournalFile.append

    def held_write(self: JournalFile, lines: Iterable[bytes]) -> None:
        before()
        write(self, lines)

    def held_append(self: JournalFile, lines: Iterable[bytes]) -> None:
        before()
        append(self, lines)

    monkeypatch.setattr(JournalFile, "write", held_write)
    monkeypatch.setattr(JournalFile, "append", held_append)


def hold_state_files(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    write = JsonFile.write

    def held(self: JsonFile, text: str | Iterable[str]) -> None:
        before()
        write(self, text)

    monkeypatch.setattr(JsonFile, "write", held)


def in_topics_json(directory: Path) -> set[str]:
    path = directory / "config" / "topics.json"
    try:
        return set(json.loads(path.read_text())["topicConfigTable"])
    except FileNotFoundError:
        return set()


def test_a_thousand_first_sends_hold_up_no_other_client_while_the_disk_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    with Cluster() as cluster:
        address = cluster.brokers[0].address
        with RawClient(address) as other, RawClient(address) as maker:
            assert other.ask(SEND, send_ext("others"), b"x").code == SUCCESS
            hold_journal(monkeypatch, gate)
            hold_state_files(monkeypatch, gate)
            sent = [maker.send(SEND, send_ext(f"made-{at}"), b"x") for at in range(TOPIC_COUNT)]
            assert gate.reached.wait(WAIT_S)
            for _ in range(100):
                assert other.ask(SEND, send_ext("others"), b"x").code == SUCCESS
            # No send was acknowledged before its topic was on the disk.
            with RawClient(address) as reader:
                answer = reader.ask(PULL, pull_ext("made-0"))
                assert b"\x00\x00\x00\x01x" not in answer.body
            gate.open.set()
            assert [maker.answer(opaque).code for opaque in sent] == [SUCCESS] * TOPIC_COUNT


def test_a_heartbeat_with_five_hundred_new_groups_holds_up_no_other_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    consumers = [
        {
            "groupName": f"group-{at}",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [{"topic": "others", "subString": "*", "subVersion": 1}],
        }
        for at in range(500)
    ]
    body = json.dumps({"clientID": "many", "consumerDataSet": consumers, "producerDataSet": []})
    with Cluster() as cluster:
        broker = cluster.brokers[0]
        with RawClient(broker.address) as other, RawClient(broker.address) as member:
            assert other.ask(SEND, send_ext("others"), b"x").code == SUCCESS
            hold_journal(monkeypatch, gate)
            hold_state_files(monkeypatch, gate)
            opaque = member.send(HEARTBEAT, {}, body.encode())
            assert gate.reached.wait(WAIT_S)
            for _ in range(100):
                assert other.ask(SEND, send_ext("others"), b"x").code == SUCCESS
            # Membership does not depend on the disk.
            assert member.answer(opaque).code == SUCCESS
            gate.open.set()
            directory = broker.store_config.store_path_root_dir
            eventually(lambda: f"%RETRY%group-{499}" in in_topics_json(directory))


def test_what_was_acknowledged_is_there_after_a_kill_before_topics_json_was_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = Gate()
    killed = tmp_path / "killed"
    with Cluster() as cluster:
        broker = cluster.brokers[0]
        hold_state_files(monkeypatch, gate)
        with RawClient(broker.address) as maker:
            sent = [maker.send(SEND, send_ext(f"made-{at}"), b"%d" % at) for at in range(200)]
            assert [maker.answer(opaque).code for opaque in sent] == [SUCCESS] * 200
        # One thread writes the state files. While it is held, none of them is replaced any more.
        assert gate.reached.wait(WAIT_S)
        # This is what a broker that is killed now leaves behind: the page cache outlives a process.
        assert "made-0" not in in_topics_json(broker.store_config.store_path_root_dir)
        shutil.copytree(cluster.directory, killed)
        gate.open.set()
    monkeypatch.undo()
    with Cluster(directory=killed) as cluster:
        broker = cluster.brokers[0]
        with RawClient(broker.address) as reader:
            for at in range(200):
                answer = reader.ask(PULL, pull_ext(f"made-{at}"))
                assert answer.code == SUCCESS, at
                assert b"%d" % at in answer.body
        directory = broker.store_config.store_path_root_dir
        eventually(lambda: "made-199" in in_topics_json(directory))
        eventually(lambda: not (directory / "config" / "topics.journal").exists())


def test_a_topic_that_a_full_disk_cannot_take_is_refused_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = threading.Event()

    def refuse() -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")

    hold_journal(monkeypatch, refuse)
    hold_state_files(monkeypatch, refuse)
    with Cluster() as cluster:
        broker = cluster.brokers[0]
        directory = broker.store_config.store_path_root_dir
        with RawClient(broker.address) as client:
            assert client.ask(SEND, send_ext("before"), b"x").code == SUCCESS
            full.set()
            for _ in range(3):
                refused = client.ask(SEND, send_ext("new"), b"x")
                assert refused.code == SERVICE_NOT_AVAILABLE
                assert "No space left" in (refused.remark or "")
            assert client.ask(SEND, send_ext("before"), b"x").code == SUCCESS
            full.clear()
            assert client.ask(SEND, send_ext("new"), b"x").ext["queueOffset"] == "0"
            eventually(lambda: "new" in in_topics_json(directory))


def test_a_message_sent_back_waits_for_its_retry_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with Cluster() as cluster:
        broker = cluster.brokers[0]
        with RawClient(broker.address) as client:
            place = client.ask(SEND, send_ext("orders"), b"x").ext["msgId"]
            hold_journal(monkeypatch, gate)
            hold_state_files(monkeypatch, gate)
            back = client.send(
                SEND_BACK,
                {"offset": int(place[-16:], 16), "group": "audit", "delayLevel": 0},
            )
            assert gate.reached.wait(WAIT_S)
            end = broker.store.commit_log.end
            assert client.ask(SEND, send_ext("orders"), b"y").code == SUCCESS
            gate.open.set()
            assert client.answer(back).code == SUCCESS
            assert broker.store.commit_log.end > end
