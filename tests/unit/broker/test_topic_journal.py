"""New topics reach the disk outside the loop, and every crash leaves the acknowledged ones."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.waits import WAIT_S, until

from cometmq.broker.config import BrokerConfig
from cometmq.broker.refusal import Refused
from cometmq.broker.tables import BrokerTables
from cometmq.broker.topics import journal as topic_journal
from cometmq.broker.topics.creation_limits import BURST_S
from cometmq.broker.topics.journal import JournalFile, TopicJournal
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.cluster import TopicConfigSerializeWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import StateWriter

MODEL = "TBW102"


class Tables:
    """The tables of a broker in a directory. Without `close`, the directory is left as by a
    kill.
    """

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.state = StateWriter()
        config = BrokerConfig(broker_name="b", broker_cluster_name="C", broker_ip1="127.0.0.1")
        for name, value in settings.items():
            setattr(config, name, value)
        self.tables = BrokerTables(
            config,
            SYSTEM_CLOCK,
            self.state,
            directory,
        )
        self.topics = self.tables.topics
        self.groups = self.tables.groups

    def make(self, name: str) -> None:
        assert self.topics.create_on_send(name, MODEL, 4) is not None

    async def made(self, *names: str) -> None:
        for name in names:
            self.make(name)
        await self.topics.written()

    def close(self) -> None:
        self.tables.save()
        self.state.close()
        self.tables.close()

    def in_file(self) -> TopicConfigSerializeWrapper:
        return decode_body(
            (self.directory / "topics.json").read_bytes(), TopicConfigSerializeWrapper
        )


def blocked_folds(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold up every write of topics.json until the event is set, while nothing waits for such a
    write.
    """
    monkeypatch.setattr(topic_journal, "FOLD_WAIT_S", 0.0)
    go_on = threading.Event()
    write = JsonFile.write

    def slow(self: JsonFile, text: str | Iterable[str]) -> None:
        if self.path.name == "topics.json":
            assert go_on.wait(WAIT_S)
        write(self, text)

    monkeypatch.setattr(JsonFile, "write", slow)
    return go_on


def copy_of(directory: Path) -> Path:
    """Copy what a process would leave behind if it were killed now."""
    copy = directory.with_name(directory.name + "-killed")
    shutil.copytree(directory, copy)
    return copy


async def test_a_kill_before_topics_json_is_written_loses_no_acknowledged_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = blocked_folds(monkeypatch)
    first = Tables(tmp_path / "config")
    await first.made(*(f"t{at}" for at in range(50)))
    await first.made("last")
    assert not (tmp_path / "config" / "topics.json").exists()
    killed = copy_of(tmp_path / "config")
    go_on.set()
    again = Tables(killed)
    assert all(again.topics.get(f"t{at}") is not None for at in range(50))
    assert again.topics.get("last") == first.topics.get("last")
    assert again.topics.data_version == first.topics.data_version
    # A Java broker knows no journal: topics.json has them soon, and the journal goes.
    await until(lambda: not (killed / "topics.journal").exists())
    assert "last" in again.in_file().topic_config_table
    again.close()
    first.close()


async def test_java_finds_every_acknowledged_topic_of_a_small_table_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not know the journal. A slow disk must not keep `topics.json` behind the
    acknowledgements, although a state file rests twenty times as long as its last write took.
    """
    monkeypatch.setattr(topic_journal, "FOLD_WAIT_S", WAIT_S)
    write = JsonFile.write

    def slow(self: JsonFile, text: str | Iterable[str]) -> None:
        time.sleep(0.1)
        write(self, text)

    monkeypatch.setattr(JsonFile, "write", slow)
    tables = Tables(tmp_path)
    for name in ("letters", "numbers", "batched"):
        begun = time.monotonic()
        await tables.made(name)
        assert name in tables.in_file().topic_config_table
        assert time.monotonic() - begun < WAIT_S / 2, "it waited in vain for topics.json"
    tables.close()


async def test_a_small_table_that_cannot_be_written_holds_up_new_topics_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has these topics, which is enough for every broker of our own."""
    (tmp_path / "topics.json.tmp").mkdir()
    monkeypatch.setattr(topic_journal, "FOLD_WAIT_S", 0.2)
    tables = Tables(tmp_path)
    await tables.made("one")
    assert tables.topics.is_written("one")
    assert not (tmp_path / "topics.json").exists()
    (tmp_path / "topics.json.tmp").rmdir()
    tables.close()
    assert "one" in tables.in_file().topic_config_table


async def test_a_kill_between_topics_json_and_the_end_of_the_journal_brings_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicJournal, "folded", lambda *_: None)
    monkeypatch.setattr(topic_journal, "FOLD_WAIT_S", 0.0)
    tables = Tables(tmp_path / "config")
    await tables.made("kept", "removed")
    tables.topics.put(TopicConfig("kept", perm=4))
    tables.topics.remove("removed")
    await tables.topics.written()
    await until((tmp_path / "config" / "topics.json").exists)
    tables.state.close()
    monkeypatch.undo()
    again = Tables(copy_of(tmp_path / "config"))
    assert again.topics.get("removed") is None
    kept = again.topics.get("kept")
    assert kept is not None
    assert kept.perm == 4
    again.close()
    tables.tables.close()


async def test_a_clean_stop_leaves_no_journal(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    await tables.made("a")
    tables.make("b")
    tables.close()
    assert {"a", "b"} <= tables.in_file().topic_config_table.keys()
    assert not (tmp_path / "topics.journal").exists()


@pytest.mark.parametrize("kept", range(0, 400, 7))
async def test_a_half_written_line_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    go_on = blocked_folds(monkeypatch)
    tables = Tables(tmp_path / "config")
    await tables.made("first")
    journal = tmp_path / "config" / "topics.journal"
    whole = journal.stat().st_size
    await tables.made("second")
    killed = copy_of(tmp_path / "config")
    go_on.set()
    tables.close()
    data = (killed / "topics.journal").read_bytes()
    (killed / "topics.journal").write_bytes(data[: whole + kept])
    again = Tables(killed)
    assert again.topics.get("first") is not None
    assert (again.topics.get("second") is not None) == (whole + kept >= len(data) - 1)
    await again.made("third")
    again.close()
    assert {"first", "third"} <= again.in_file().topic_config_table.keys()


async def test_a_flipped_bit_costs_one_line_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[dict[str, Any]]
) -> None:
    go_on = blocked_folds(monkeypatch)
    tables = Tables(tmp_path / "config")
    await tables.made("first", "second", "third")
    killed = copy_of(tmp_path / "config")
    go_on.set()
    tables.close()
    data = bytearray((killed / "topics.journal").read_bytes())
    data[data.index(b"second")] ^= 1
    (killed / "topics.journal").write_bytes(data)
    again = Tables(killed)
    assert again.topics.get("first") is not None
    assert again.topics.get("third") is not None
    assert again.topics.get("second") is None
    assert any("damaged" in line["event"] for line in log_lines)
    again.close()


async def test_what_another_broker_wrote_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = blocked_folds(monkeypatch)
    tables = Tables(tmp_path / "config")
    await tables.made("only-in-journal", "in-both")
    killed = copy_of(tmp_path / "config")
    go_on.set()
    tables.close()
    # A Java broker went on without the journal.
    theirs = Tables(tmp_path / "java")
    theirs.topics.put(TopicConfig("in-both", perm=4))
    theirs.topics.put(TopicConfig("of-java"))
    theirs.close()
    shutil.copy(tmp_path / "java" / "topics.json", killed / "topics.json")
    again = Tables(killed)
    in_both = again.topics.get("in-both")
    assert in_both is not None
    assert in_both.perm == 4
    assert again.topics.get("of-java") is not None
    assert again.topics.get("only-in-journal") is not None
    again.close()
    assert "only-in-journal" in again.in_file().topic_config_table


async def test_many_new_topics_are_few_writes_and_each_writes_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a topic must not grow with the number of topics: the test counts bytes and
    syncs.
    """
    sizes: list[int] = []
    append = JournalFile.append

    def counted(self: JournalFile, lines: Iterable[bytes]) -> None:
        data = list(lines)
        sizes.append(sum(map(len, data)))
        append(self, data)

    monkeypatch.setattr(JournalFile, "append", counted)
    go_on = blocked_folds(monkeypatch)
    tables = Tables(tmp_path)
    await tables.made("first")
    await tables.made(*(f"a{at:05d}" for at in range(100)))
    await tables.made(*(f"b{at:05d}" for at in range(5_000)))
    await tables.made("c00000")
    assert len(sizes) == 3
    assert sizes[1] < 60 * sizes[0]
    assert sizes[2] * 90 < sizes[0]
    go_on.set()
    tables.close()


async def test_nothing_on_the_loop_waits_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    sync = os.fsync

    def hang(fd: int) -> None:
        assert hanging.wait(WAIT_S)
        sync(fd)

    monkeypatch.setattr(os, "fsync", hang)
    monkeypatch.setattr(os, "fdatasync", hang)
    tables = Tables(tmp_path)
    tables.make("t")
    tables.groups.find("g")
    written = asyncio.ensure_future(tables.topics.written())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not written.done()
    assert not tables.topics.is_written("t")
    hanging.set()
    await written
    assert tables.topics.is_written("t")
    tables.close()


async def test_a_full_disk_refuses_new_topics_and_takes_them_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[dict[str, Any]]
) -> None:
    tables = Tables(tmp_path)
    await tables.made("before")
    full = True
    write = os.write

    def refuse(fd: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    def refuse_to_make(path: Path, *_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    with monkeypatch.context() as patch:
        patch.setattr("cometmq.runtime.state_files.durable.create", refuse_to_make)
        for name in ("one", "two"):
            tables.make(name)
            with pytest.raises(Refused, match="No space left") as caught:
                await tables.topics.written()
            assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert not tables.topics.is_written(name)
    full = False
    # Nobody asks again: it is written all the same.
    await until(lambda: tables.topics.is_written("two"))
    await until(lambda: "two" in tables.in_file().topic_config_table)
    # The journal's end is near now; a copy made meanwhile would miss the file that it is reading.
    await until(lambda: not (tmp_path / "topics.journal").exists())
    assert "one" in tables.in_file().topic_config_table

    def said() -> list[str]:
        return [line["event"] for line in log_lines if line["event"].startswith("topics ")]

    await until(lambda: "topics are written again" in said())
    tables.close()
    assert said().count("topics are written again") == 1
    assert len([event for event in said() if event.startswith("topics cannot be written")]) == 1


async def test_too_many_new_topics_are_refused_by_name_of_the_limit(tmp_path: Path) -> None:
    tables = Tables(tmp_path, max_topics_made_per_second=3, max_groups_made_per_second=1)
    for at in range(3 * BURST_S):
        tables.make(f"t{at}")

    def make_many() -> None:
        for at in range(100):
            tables.make(f"more{at}")

    def find_many() -> None:
        for at in range(100):
            tables.groups.find(f"g{at}")

    with pytest.raises(Refused, match="maxTopicsMadePerSecond is 3") as caught:
        make_many()
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    with pytest.raises(Refused, match="maxGroupsMadePerSecond is 1"):
        find_many()
    # What exists is found, and an operator may go on.
    assert tables.topics.create_on_send("t0", MODEL, 1) is not None
    tables.topics.put(TopicConfig("by-hand"))
    tables.close()


async def test_topics_in_all_have_a_limit(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    count = len(list(tables.topics.all()))
    limited = Tables(tmp_path / "limited", max_topics=count + 1)
    limited.make("one")
    with pytest.raises(Refused, match=f"limit maxTopics is {count + 1}") as caught:
        limited.make("two")
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    assert limited.topics.get("two") is None
    limited.close()
    tables.close()
