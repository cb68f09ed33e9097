"""Test the answers to clients when the disk is full or slow, and to operators who ask about it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.own_broker import OwnBroker, nameless
from tests.integration.raw_client import Command, RawClient, properties, pull_ext, send_ext
from tests.waits import CLOCKS_APART_MS, eventually

from cometmq.protocol.messages.record import decode_records
from cometmq.store.config import StoreConfig

LOG_FILE = 4096
SEARCH_OFFSET, MAX_OFFSET, VIEW_MESSAGE = 29, 30, 33
SEND, PULL, END_TRANSACTION = 10, 11, 37
PREPARED, COMMIT = 4, 8
CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC, DELETE_EXPIRED_COMMITLOG = 306, 316, 329


def new_site(root: Path, **settings: Any) -> OwnBroker:
    """Return a broker of small files that often looks for files to remove."""
    return OwnBroker(
        nameless(),
        StoreConfig(
            store_path_root_dir=root,
            mapped_file_size_commit_log=LOG_FILE,
            mapped_file_size_consume_queue=100,
            clean_resource_interval=50,
            delete_commit_log_files_interval=1,
            **settings,
        ),
    )


def commit(site: OwnBroker) -> None:
    """Commit a transient store pool, as the timer does now and then."""

    async def commit() -> None:
        site.broker.store.commit()
        site.broker.store.publish()

    site.thread.call(commit())


def age_files(site: OwnBroker) -> None:
    long_ago = time.time() - 100 * 3600
    for path in sorted((site.root / "commitlog").iterdir()):
        os.utime(path, (long_ago, long_ago))


@contextmanager
def site(root: Path, **settings: Any) -> Iterator[tuple[OwnBroker, RawClient]]:
    with new_site(root, **settings) as running, running.client() as client:
        yield running, client


def send(client: RawClient, topic: str = "T", size: int = 700) -> Command:
    return client.ask(SEND, send_ext(topic), b"x" * size)


def test_a_full_disk_is_service_not_available_until_there_is_room(tmp_path: Path) -> None:
    with site(tmp_path) as (running, client):
        assert send(client).code == 0
        running.disk.used = 95
        eventually(lambda: send(client).code == 14)
        refused = send(client)
        assert refused.remark is not None
        assert "95.0% full, the limit is 90% (diskSpaceWarningLevelRatio)" in refused.remark
        assert "fileReservedTime" in refused.remark
        assert client.ask(PULL, pull_ext("T")).code == 0
        running.disk.used = 60
        eventually(lambda: send(client).code == 0)
        assert running.broker.store.refusals.counts


def test_a_disk_that_is_behind_is_system_busy(tmp_path: Path) -> None:
    settings = {"flush_interval_commit_log": 20, "flush_commit_log_thorough_interval": 20}
    with site(tmp_path, os_page_cache_busy_time_out_mills=100, **settings) as (running, client):
        running.disk.may_sync.clear()
        eventually(lambda: send(client, size=10).code == 2)
        refused = send(client)
        assert refused.remark is not None
        assert refused.remark.startswith(
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: a flush has been "
        )
        assert refused.remark.endswith(
            "the limit is osPageCacheBusyTimeOutMills=100; send again in 100 ms"
        )
        running.disk.may_sync.set()
        eventually(lambda: send(client).code == 0)


def test_expired_files_go_when_an_operator_asks(tmp_path: Path) -> None:
    never = {"delete_when": ""}
    with site(tmp_path, **never) as (running, client):
        for _ in range(20):
            assert send(client).code == 0
        age_files(running)
        assert client.ask(DELETE_EXPIRED_COMMITLOG).code == 0
        eventually(lambda: running.broker.store.commit_log.min_offset >= 4 * LOG_FILE)

        def pull_from_the_first() -> Command:
            pulled = client.ask(PULL, pull_ext("T"))
            return client.ask(PULL, pull_ext("T", queueOffset=pulled.ext["minOffset"]))

        # The queues follow the log a moment later.
        eventually(lambda: pull_from_the_first().code == 0)
        pulled = client.ask(PULL, pull_ext("T"))
        assert (pulled.code, pulled.ext["minOffset"]) == (21, pulled.ext["nextBeginOffset"])


def test_what_waits_outlives_the_files_that_it_lay_in(tmp_path: Path) -> None:
    settings = {"delete_when": "", "message_delay_level": "1h", "flush_interval_commit_log": 50}
    with site(tmp_path, flush_commit_log_thorough_interval=50, **settings) as (running, client):
        store = running.broker.store
        assert send(client, "done").code == 0
        half = {
            "UNIQ_KEY": "H",
            "TRAN_MSG": "true",
            "PGROUP": "pg",
            "CHECK_IMMUNITY_TIME_IN_SECONDS": "99",
        }
        waits: dict[str, dict[str, str]] = {
            "level": {"UNIQ_KEY": "L", "DELAY": "1"},
            "timer": {"UNIQ_KEY": "T", "TIMER_DELAY_MS": "3600000"},
            "half": half,
        }
        now_ms = int(time.time() * 1000)
        placed = {}
        for topic, wait in waits.items():
            ext = send_ext(
                topic,
                bornTimestamp=now_ms,
                sysFlag=PREPARED if topic == "half" else 0,
                properties=properties(wait),
            )
            answer = client.ask(SEND, ext, topic.encode())
            assert answer.code == 0, answer.remark
            placed[topic] = answer
        first_end = store.commit_log.files.files[0].end
        while store.commit_log.end < 3 * LOG_FILE:
            send(client, "done")
        age_files(running)
        assert client.ask(DELETE_EXPIRED_COMMITLOG).code == 0
        eventually(lambda: store.commit_log.min_offset >= first_end)
        assert client.ask(PULL, pull_ext("level")).code != 0
        end = {
            "producerGroup": "pg",
            "tranStateTableOffset": placed["half"].ext["queueOffset"],
            "commitLogOffset": int(placed["half"].ext["msgId"][16:], 16),
            "commitOrRollback": COMMIT,
            "msgId": "H",
        }
        assert client.ask(END_TRANSACTION, end).code == 0
        running.clock.ahead_ms = 3_602_000
        for topic in waits:
            eventually(lambda topic=topic: client.ask(PULL, pull_ext(topic)).code == 0)  # type: ignore[misc]  # mypy infers no lambda with a default
            (record,) = decode_records(client.ask(PULL, pull_ext(topic)).body)
            assert record.body == topic.encode()
            if topic != "half":
                waited_ms = record.store_timestamp - record.born_timestamp
                assert waited_ms >= 3_600_000 - CLOCKS_APART_MS


@pytest.mark.parametrize("code", [CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC])
def test_queues_of_known_topics_survive_cleaning(tmp_path: Path, code: int) -> None:
    with site(tmp_path) as (running, client):
        assert send(client, "idle", 10).code == 0
        for _ in range(20):
            send(client)
        # Add a topic that only the store knows.
        store = running.broker.store
        assert client.ask(code).code == 0
        assert store.max_offset("idle", 0) == 1
        assert send(client, "idle", 10).ext["queueOffset"] == "1"


def test_queues_of_unknown_topics_are_cleaned(tmp_path: Path) -> None:
    with new_site(tmp_path / "a") as first, first.client() as client:
        assert send(client, "old", 10).code == 0
    # As a deletion leaves it that ends after the table is written. (A lost table would be found in the log.)
    path = tmp_path / "a/config/topics.json"
    table = json.loads(path.read_bytes())
    del table["topicConfigTable"]["old"]
    path.write_text(json.dumps(table))
    with site(tmp_path / "a") as (running, client):
        assert "old" in running.broker.store.topics()
        assert client.ask(CLEAN_UNUSED_TOPIC).code == 0
        assert "old" not in running.broker.store.topics()
        assert not (tmp_path / "a/consumequeue/old").exists()
        assert send(client, "old", 10).ext["queueOffset"] == "0"


def test_committed_messages_wake_pulls_with_a_transient_store_pool(tmp_path: Path) -> None:
    with site(tmp_path, transient_store_pool_enable=True) as (running, client):
        assert send(client, size=10).code == 0
        with running.client() as waiting:
            eventually(lambda: client.ask(PULL, pull_ext("T")).code == 0)
            opaque = waiting.send(PULL, pull_ext("T", queueOffset=1, sysFlag=6))
            assert send(client, size=10).ext["queueOffset"] == "1"
            assert waiting.answer(opaque).code == 0


def test_what_is_not_committed_is_not_there_for_any_reader(tmp_path: Path) -> None:
    settings = {"transient_store_pool_enable": True, "commit_interval_commit_log": 3_600_000}
    queue = {"topic": "T", "queueId": 0}
    with site(tmp_path, **settings) as (running, client), running.client() as waiting:
        sent = send(client, size=10)
        assert (sent.code, sent.ext["queueOffset"]) == (0, "0")
        place = int(sent.ext["msgId"][-16:], 16)
        assert client.ask(MAX_OFFSET, queue).ext["offset"] == "0"
        assert client.ask(SEARCH_OFFSET, {**queue, "timestamp": 0}).ext["offset"] == "0"
        assert client.ask(VIEW_MESSAGE, {"offset": place}).code == 1
        # The message waits, and comes when it is committed.
        opaque = waiting.send(PULL, pull_ext("T", sysFlag=6))
        assert waiting.silent(0.1)
        assert send(client, size=10).ext["queueOffset"] == "1"
        assert client.ask(MAX_OFFSET, queue).ext["offset"] == "0"
        commit(running)
        woken = waiting.answer(opaque)
        assert (woken.code, woken.ext["nextBeginOffset"], woken.ext["maxOffset"]) == (0, "2", "2")
        assert client.ask(MAX_OFFSET, queue).ext["offset"] == "2"
        assert client.ask(VIEW_MESSAGE, {"offset": place}).code == 0
        # A stop commits what it finds in the buffers.
        assert send(client, size=10).ext["queueOffset"] == "2"
    with site(tmp_path, **settings) as (_, client):
        assert client.ask(MAX_OFFSET, queue).ext["offset"] == "3"


def test_the_next_file_is_made_ahead_of_need(tmp_path: Path) -> None:
    with site(tmp_path, warm_maped_file_enable=True) as (_, client):
        assert send(client, size=1000).code == 0
        assert len(list((tmp_path / "commitlog").iterdir())) == 1
        assert send(client, size=1500).code == 0
        eventually((tmp_path / "commitlog" / f"{LOG_FILE:020d}").exists)
        assert send(client, size=2000).code == 0


def test_the_checkpoint_is_written_soon(tmp_path: Path) -> None:
    settings = {"flush_interval_commit_log": 20, "flush_commit_log_thorough_interval": 20}
    with site(tmp_path, **settings) as (_, client):
        assert send(client).code == 0
        eventually(lambda: (tmp_path / "checkpoint").read_bytes()[:8] != bytes(8))
