"""Brokers of one machine have the same topics and groups, whatever happens to one of them."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.integration.raw_client import send_ext
from tests.unit.broker.broker_box import HOST, Client, running
from tests.waits import until

from cometmq.access.config import AccessConfig
from cometmq.access.users.book import Book
from cometmq.access.users.store import UserStore
from cometmq.broker.server import Broker
from cometmq.broker.siblings import changes as changes_module
from cometmq.broker.siblings.changes import Change, Changes
from cometmq.broker.siblings.service import Siblings
from cometmq.errors import StoreBusyError
from cometmq.model.topic import TopicConfig
from cometmq.protocol.access_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.runtime.file_lock import locked
from cometmq.runtime.shared_lines import SharedLines

SEND, UPDATE_TOPIC, DELETE_TOPIC, DELETE_GROUP, HEARTBEAT = 10, 17, 215, 207, 34
Run = Callable[[str], AbstractAsyncContextManager[Broker]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs a broker of that name beside the others."""

    @asynccontextmanager
    async def one(name: str) -> AsyncIterator[Broker]:
        shared = tmp_path / "siblings.journal"
        async with running(tmp_path / name, shared_tables=shared, broker_name=name) as broker:
            yield broker

    return one


def config(name: str, queues: int = 4) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)


def admin(broker: Broker) -> Client:
    return Client(broker, host=HOST)


def shared_topics(broker: Broker) -> dict[str, TopicConfig]:
    return {
        topic.topic_name: topic
        for topic in broker.topics.all()
        if not broker.topics.is_system(topic.topic_name)
    }


def groups(broker: Broker) -> set[str]:
    return {group.group_name for group in broker.groups.all()}


async def same(*brokers: Broker) -> dict[str, TopicConfig]:
    """Wait until all have the same topics and groups, and return the topics."""
    await until(
        lambda: [(shared_topics(broker), groups(broker)) for broker in brokers],
        lambda seen: all(one == seen[0] for one in seen),
    )
    return shared_topics(brokers[0])


async def test_a_topic_made_by_a_send_is_made_changed_and_deleted_on_all(run: Run) -> None:
    async with run("b-0") as first, run("b-1") as second, run("b-2") as third:
        ext = {**send_ext("made"), "defaultTopic": "TBW102", "defaultTopicQueueNums": 3}
        assert (await Client(first).ask(SEND, ext, b"x")).code == 0
        await until(lambda: (second.topics.get("made"), third.topics.get("made")), all)
        assert (await same(first, second, third))["made"].write_queue_nums == 3
        change = {
            "topic": "made", "defaultTopic": "x", "readQueueNums": 6, "writeQueueNums": 5,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        assert (await admin(second).ask(UPDATE_TOPIC, change)).code == 0
        await until(lambda: shared_topics(first)["made"].read_queue_nums == 6)
        assert (await same(first, second, third))["made"].write_queue_nums == 5
        assert (await admin(third).ask(DELETE_TOPIC, {"topic": "made"})).code == 0
        await until(lambda: first.topics.get("made") is second.topics.get("made") is None)
        # With the messages: a topic of that name is another one.
        assert first.store.queue_end("made", 0) in (0, None)


async def test_groups_are_made_and_deleted_on_all_and_what_each_broker_makes_is_its_own(
    run: Run,
) -> None:
    async with run("b-0") as first, run("b-1") as second:
        first.groups.find("readers")
        first.topics.create_for_group("%RETRY%readers", 1)
        first.topics.put(config("a-sign"))
        await until(lambda: second.groups.get("readers"))
        await until(lambda: second.topics.get("a-sign"))
        assert second.topics.get("%RETRY%readers") is None
        assert second.topics.get("b-0") is None
        ext = {"groupName": "readers", "cleanOffset": "false"}
        assert (await admin(second).ask(DELETE_GROUP, ext)).code == 0
        await until(lambda: first.groups.get("readers") is None)


async def test_a_broker_that_was_away_catches_up_and_brings_nothing_back(run: Run) -> None:
    async with run("b-0") as first:
        async with run("b-1") as second:
            first.topics.put(config("stays"))
            first.topics.put(config("goes"))
            await until(lambda: second.topics.get("goes"))
            await same(first, second)
        first.topics.put(config("stays", 9))
        first.topics.put(config("new"))
        assert (await admin(first).ask(DELETE_TOPIC, {"topic": "goes"})).code == 0
        async with run("b-1") as second:
            topics = await same(first, second)
            assert topics["stays"].read_queue_nums == 9
            assert "new" in topics
            assert "goes" not in topics


async def test_a_change_that_was_not_told_before_the_end_is_told_at_the_next_start(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run("b-0") as first, run("b-1") as second:
        first.topics.put(config("t", 2))
        await until(lambda: second.topics.get("t"))
        await same(first, second)
    with monkeypatch.context() as patch:
        # As if it were killed before it looks again.
        patch.setattr("cometmq.broker.siblings.service.Siblings.start", lambda _: None)
        async with run("b-0") as first:
            first.topics.put(config("t", 7))
            first.topics.put(config("late"))
    async with run("b-0") as first, run("b-1") as second:
        await until(lambda: second.topics.get("late"))
        assert (await same(first, second))["t"].read_queue_nums == 7


async def test_a_store_that_joins_brings_its_topics(tmp_path: Path, run: Run) -> None:
    async with running(tmp_path / "b-1", broker_name="b-1") as alone:
        alone.topics.put(config("old"))
    async with run("b-0") as first, run("b-1") as joined:
        await until(lambda: first.topics.get("old"))
        await same(first, joined)


async def test_brokers_that_change_a_topic_at_once_end_with_the_same(run: Run) -> None:
    async with run("b-0") as first, run("b-1") as second, run("b-2") as third:
        brokers = [first, second, third]
        for turn in range(10):
            for queues, broker in enumerate(brokers, start=1):
                broker.topics.put(config("contended", 10 * turn + queues))
            await asyncio.sleep(0.02)
        await until(lambda: all(broker.topics.get("contended") for broker in brokers))
        final = (await same(*brokers))["contended"].read_queue_nums
        assert final in {91, 92, 93}


async def test_a_sibling_that_hangs_while_it_writes_holds_up_no_send(
    tmp_path: Path, run: Run
) -> None:
    async with run("b-0") as first, run("b-1") as second:
        await same(first, second)
        with locked(tmp_path / "siblings.journal.lock", wait=True):
            ext = {**send_ext("made"), "defaultTopic": "TBW102", "defaultTopicQueueNums": 1}
            assert (await Client(first).ask(SEND, ext, b"x")).code == 0
            assert second.topics.get("made") is None
        await until(lambda: second.topics.get("made"))


async def test_a_topic_that_is_deleted_and_made_again_at_once_is_empty_on_all(run: Run) -> None:
    async with run("b-0") as first, run("b-1") as second:
        first.topics.put(config("again"))
        await until(lambda: second.topics.get("again"))
        await same(first, second)
        assert (await Client(second).ask(SEND, send_ext("again"), b"x")).code == 0
        # Faster than the other looks.
        assert (await admin(first).ask(DELETE_TOPIC, {"topic": "again"})).code == 0
        first.topics.put(config("again"))
        first.topics.put(config("mark"))
        await until(lambda: second.topics.get("mark"))
        assert (await same(first, second))["again"] == config("again")
        assert second.store.queue_end("again", 0) in (0, None)


async def test_one_that_was_away_gets_a_topic_made_again_empty_and_only_once(run: Run) -> None:
    async with run("b-0") as first:
        first.topics.put(config("again"))
        async with run("b-1") as second:
            await until(lambda: second.topics.get("again"))
            await same(first, second)
            assert (await Client(second).ask(SEND, send_ext("again"), b"x")).code == 0
        assert (await admin(first).ask(DELETE_TOPIC, {"topic": "again"})).code == 0
        first.topics.put(config("again"))
        for sent in range(2):  # what is sent then stays through a restart of both
            async with run("b-1") as second:
                mark = f"mark{sent}"
                first.topics.put(config(mark))
                await until(partial(second.topics.get, mark))
                assert (second.store.queue_end("again", 0) or 0) == sent
                assert (await Client(second).ask(SEND, send_ext("again"), b"y")).code == 0
    async with run("b-0") as first, run("b-1") as second:
        first.topics.put(config("last"))
        await until(lambda: second.topics.get("last"))
        assert second.store.queue_end("again", 0) == 2


async def test_a_deletion_that_fails_at_first_is_made_later_and_others_are_not_lost(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run("b-0") as first, run("b-1") as second:
        for name in ("one", "two"):
            first.topics.put(config(name))
        await until(lambda: second.topics.get("two"))
        await same(first, second)
        [siblings] = [one for one in second._services if isinstance(one, Siblings)]
        delete, calls = siblings._delete_topic, []

        async def fails_once(name: str) -> None:
            calls.append(name)
            if len(calls) == 1:
                raise StoreBusyError(f"topic {name} is being deleted already")
            await delete(name)

        monkeypatch.setattr(siblings, "_delete_topic", fails_once)
        for name in ("one", "two"):
            assert (await admin(first).ask(DELETE_TOPIC, {"topic": name})).code == 0
        await until(lambda: not shared_topics(second).keys() & {"one", "two"})
        assert sorted(calls) == ["one", "one", "two"]


async def test_brokers_that_stop_at_once_all_tell_their_last_changes(run: Run) -> None:
    async with run("b-0") as first, run("b-1") as second:
        first.topics.put(config("goes"))
        await until(lambda: second.topics.get("goes"))
        await same(first, second)
        writing = threading.Thread(target=hold, args=(first._shared_tables, 0.3))
        writing.start()
        assert (await admin(first).ask(DELETE_TOPIC, {"topic": "goes"})).code == 0
        await first.close()
        writing.join()
        await until(lambda: second.topics.get("goes") is None)


def hold(shared: Path, seconds: float) -> None:
    with locked(shared.with_name(f"{shared.name}.lock"), wait=True):
        time.sleep(seconds)


# -- the file --

View = Callable[..., Changes]


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    """Return what gives a broker's view of one file."""
    with ExitStack() as stack:

        def one(broker: str, **options: int) -> Changes:
            changes = Changes(tmp_path / "shared", broker, **options)
            stack.callback(changes.close)
            return changes

        yield one


def write(changes: Changes, *names: str, queues: int = 1) -> None:
    changes.append(
        lambda _: [Change(0, "", "topic", name, topic=config(name, queues)) for name in names]
    )


def removal(name: str, _news: object) -> list[Change]:
    return [Change(0, "", "topic", name)]


def test_a_file_that_grew_is_written_anew_and_its_readers_get_nothing_twice(view: View) -> None:
    writer = view("b-0", compact_from_bytes=20_000)
    reader = view("b-1", compact_from_bytes=20_000)
    write(writer, "first")
    assert set(reader.read()) == {("topic", "first")}
    for queues in range(400):
        write(writer, "t", queues=queues)
    assert writer.path.stat().st_size < 40_000
    [[change]] = reader.read().values()
    assert (change.name, change.number) == ("t", 401)
    assert change.topic == config("t", 399)
    assert not reader.has_news()
    write(reader, "from-the-reader")
    assert set(writer.read()) == {("topic", "from-the-reader")}
    assert {name for _, name in view("b-2").read()} == {"first", "t", "from-the-reader"}


def test_a_file_that_cannot_be_written_anew_grows_on_and_loses_nothing(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = view("b-0", compact_from_bytes=1), view("b-1", compact_from_bytes=1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("cometmq.runtime.durable.write_new", full)
        write(writer, "one")
        write(writer, "two")
    assert [change.number for [change] in reader.read().values()] == [1, 2]
    write(writer, "three")
    assert {name for _, name in reader.read()} == {"three"}


def test_news_that_came_before_a_failed_write_come_again(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = view("b-0"), view("b-1")
    write(writer, "theirs")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(SharedLines, "_add", full)
        with pytest.raises(OSError, match="space"):
            write(reader, "mine")
        with locked(writer.path.with_name("shared.lock")), pytest.raises(BlockingIOError):
            write(reader, "mine")
    news, added = reader.append(lambda _: [])
    assert set(news) == {("topic", "theirs")}
    assert not added


def test_removals_are_remembered_up_to_a_limit(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "MOST_REMOVALS", 5)
    writer = view("b-0", compact_from_bytes=1)
    write(writer, "kept")
    for number in range(20):
        writer.append(partial(removal, f"t{number}"))
    names = {name for _, name in view("b-1").read()}
    assert names >= {"kept", *(f"t{number}" for number in range(15, 20))}
    assert names.isdisjoint(f"t{number}" for number in range(5))


def test_half_a_line_of_a_killed_broker_costs_that_line_only(view: View) -> None:
    writer, reader = view("b-0"), view("b-1")
    write(writer, "whole")
    line = msgspec.json.encode(Change(2, "b-2", "topic", "half", topic=config("half")))
    with writer.path.open("ab") as file:
        file.write(line[: len(line) // 2])
    assert {name for _, name in reader.read()} == {"whole"}
    assert reader.read() == {}
    write(writer, "after")
    assert {name for _, name in reader.read()} == {"after"}


# Users and policies


@pytest.fixture
def run_guarded(tmp_path: Path) -> Run:
    """Return what runs a broker with users beside the others."""

    @asynccontextmanager
    async def one(name: str) -> AsyncIterator[Broker]:
        shared = tmp_path / "siblings.journal"
        access = AccessConfig(
            authentication_enabled=True,
            authorization_enabled=True,
            init_authentication_user='{"username":"admin","password":"admin-secret"}',
        )
        async with running(
            tmp_path / name, shared_tables=shared, access=access, broker_name=name
        ) as broker:
            yield broker

    return one


def users(broker: Broker) -> UserStore:
    assert broker.users is not None
    return broker.users


async def same_users(*brokers: Broker) -> Book:
    await until(
        lambda: [(users(each).book.users, users(each).book.acls) for each in brokers],
        lambda seen: all(one == seen[0] for one in seen),
    )
    return users(brokers[0]).book


def saying(decision: str) -> AclInfo:
    entry = PolicyEntryInfo("Topic:orders", ["Pub"], None, decision)
    return AclInfo("User:amy", [PolicyInfo("Custom", [entry])])


async def test_users_and_policies_changed_on_one_are_changed_on_all(run_guarded: Run) -> None:
    async with run_guarded("b-0") as first, run_guarded("b-1") as second:
        await users(first).change(lambda book: book.create_user(UserInfo("amy", "secret")))
        await until(lambda: "amy" in users(second).book.users)
        await users(second).change(lambda book: book.put_acl(saying("Allow")))
        await until(lambda: "User:amy" in users(first).book.acls)
        await users(first).change(lambda book: book.put_acl(saying("Deny")))
        await users(first).change(lambda book: book.update_user(UserInfo("amy", "new-secret")))
        book = await same_users(first, second)
        assert book.users["amy"].password == "new-secret"
        assert book.acls["User:amy"] == saying("Deny")
        await users(second).change(lambda book: book.without_user("amy"))
        await until(lambda: "amy" not in users(first).book.users)
        assert "User:amy" not in (await same_users(first, second)).acls


async def test_a_broker_that_was_away_takes_a_users_removal_over(
    run_guarded: Run, tmp_path: Path
) -> None:
    async with run_guarded("b-0") as first:
        async with run_guarded("b-1") as second:
            await users(first).change(lambda book: book.create_user(UserInfo("amy", "secret")))
            await users(first).change(lambda book: book.put_acl(saying("Allow")))
            await until(lambda: "User:amy" in users(second).book.acls)
            place = tmp_path / "b-1" / "config" / "siblings.json"
            await until(place.exists)
        await users(first).change(lambda book: book.without_user("amy"))
        async with run_guarded("b-1") as second:
            await until(lambda: "amy" not in users(second).book.users)
            assert "User:amy" not in (await same_users(first, second)).acls
    assert (tmp_path / "siblings.journal").stat().st_mode & 0o777 == 0o600
