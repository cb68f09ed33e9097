"""Offsets in a file, for broadcasting, and at brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.client.fakes import FakeInstance, route
from tests.waits import until

from cometmq.client.membership.offset_store import (
    LOCAL_DIRECTORY_VARIABLE,
    LocalOffsetStore,
    RemoteOffsetStore,
    local_directory,
    persist_periodically,
)
from cometmq.errors import (
    ConfigError,
    IllegalArgumentError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.headers import (
    OffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

Q0, Q1 = (MessageQueue("t", "a", i) for i in range(2))


def store(directory: Path) -> LocalOffsetStore:
    return LocalOffsetStore(directory, "10.0.0.1@DEFAULT", "g")


def path(directory: Path) -> Path:
    return directory / "10.0.0.1@DEFAULT" / "g" / "offsets.json"


async def test_what_was_persisted_is_found_again(tmp_path: Path) -> None:
    first = store(tmp_path)
    assert await first.fetch(Q0) is None
    first.update(Q0, 5, increase_only=True)
    first.update(Q0, 3, increase_only=True)
    first.update(Q1, 7, increase_only=True)
    first.update(Q1, 6, increase_only=False)
    await first.persist([Q0])
    again = store(tmp_path)
    assert (await again.fetch(Q0), await again.fetch(Q1)) == (5, 6)
    again.remove(Q0)  # the queue was given up; nobody else moves its offset
    assert again.get(Q0) == 5


async def test_the_file_is_one_that_java_reads(tmp_path: Path) -> None:
    offsets = store(tmp_path)
    offsets.update(Q0, 5, increase_only=True)
    await offsets.persist([])
    bean = '{"brokerName":"a","queueId":0,"topic":"t"}'
    head = '{"offsetTable":{' + bean + ":"
    # Java ignores the key that follows, the checksum.
    assert path(tmp_path).read_text().startswith(head + "5},\n\t")
    offsets.update(Q0, 6, increase_only=True)
    await offsets.persist_oneway([])
    assert path(tmp_path).read_text().startswith(head + "6},\n\t")
    assert path(tmp_path).with_name("offsets.json.bak").read_text().startswith(head + "5},\n\t")


async def test_a_file_of_javas_client_is_read(tmp_path: Path) -> None:
    path(tmp_path).parent.mkdir(parents=True)
    path(tmp_path).write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"t"\n'
        '\t\t}:12,{\n\t\t\t"brokerName":"a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"t"\n\t\t}:3\n\t}\n}'
    )
    offsets = store(tmp_path)
    assert (offsets.get(Q0), offsets.get(Q1)) == (3, 12)


async def test_a_damaged_file_is_replaced_by_its_backup(tmp_path: Path) -> None:
    offsets = store(tmp_path)
    for offset in (5, 6):
        offsets.update(Q0, offset, increase_only=True)
        await offsets.persist([])
    path(tmp_path).write_text('{"offsetTable":{{"brok')
    assert store(tmp_path).get(Q0) == 5
    # The whole backup has taken the damaged file's place, too.
    path(tmp_path).with_name("offsets.json.bak").write_text("[")
    assert store(tmp_path).get(Q0) == 5
    path(tmp_path).write_text('{"offsetTable":{{"brok')
    with pytest.raises(ConfigError, match="repair the file"):
        store(tmp_path)


async def test_unchanged_offsets_are_not_written_again(tmp_path: Path) -> None:
    offsets = store(tmp_path)
    await offsets.persist([])
    assert not path(tmp_path).exists()


async def test_offsets_that_cannot_be_saved_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = store(tmp_path)
    path(tmp_path).parent.mkdir(parents=True)
    (path(tmp_path).parent / "offsets.json.tmp").mkdir()
    offsets.update(Q0, 5, increase_only=True)
    await offsets.persist([])
    assert offsets.get(Q0) == 5
    (path(tmp_path).parent / "offsets.json.tmp").rmdir()
    await offsets.persist([])
    assert store(tmp_path).get(Q0) == 5


def test_a_client_id_is_no_way_out_of_the_directory(tmp_path: Path) -> None:
    for client_id in ("10.0.0.1@../../x", "..", "."):
        with pytest.raises(IllegalArgumentError, match="cannot name a directory"):
            LocalOffsetStore(tmp_path, client_id, "g")


def test_the_directory_is_given_or_the_environments_or_javas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(LOCAL_DIRECTORY_VARIABLE, raising=False)
    assert local_directory(None) == Path.home() / ".rocketmq_offsets"
    monkeypatch.setenv(LOCAL_DIRECTORY_VARIABLE, str(tmp_path))
    assert local_directory(None) == tmp_path
    assert local_directory(tmp_path / "x") == tmp_path / "x"


async def test_a_periodic_commit_has_each_broker_answer_once(fake: FakeInstance) -> None:
    update = RequestCode.UPDATE_CONSUMER_OFFSET
    fake.remoting.routes["t"] = route("a", "b", queues=3)
    fake.remoting.answers[update] = lambda *_: response(0)
    await fake.instance.routes.refresh("t")
    queues = [MessageQueue("t", broker, i) for broker in "ab" for i in range(3)]
    offsets = RemoteOffsetStore(fake.instance, "g")
    for queue in queues[1:]:  # of the first one nothing is known yet
        offsets.update(queue, 6, increase_only=True)
    await offsets.persist(queues)
    fake.remoting.calls.clear()
    for queue in queues[1:]:
        offsets.update(queue, 7, increase_only=True)
    await persist_periodically(offsets, queues)
    sent = fake.remoting.sent(update)
    headers = [command.header(UpdateConsumerOffsetRequestHeader) for command in sent]
    assert [header.commit_offset for header in headers] == [7] * 5
    assert len(fake.remoting.oneways) == 3
    answered = [
        address
        for address, command in fake.remoting.calls
        if command not in fake.remoting.oneways and command.code == update
    ]
    assert sorted(answered) == ["a:1", "b:1"]


async def test_a_commit_that_the_broker_refuses_is_said_once(fake: FakeInstance) -> None:
    """A broker that lost the end of a queue refuses it until the queue's next pull is moved."""
    update = RequestCode.UPDATE_CONSUMER_OFFSET
    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[update] = lambda *_: response(29, "commitOffset[7] is illegal")
    await fake.instance.routes.refresh("t")
    offsets = RemoteOffsetStore(fake.instance, "g")
    offsets.update(Q0, 7, increase_only=True)
    with capture_logs() as said:
        for _ in range(5):
            await offsets.persist([Q0])
    assert [line["log_level"] for line in said] == ["warning", *["debug"] * 4]
    offsets.update(Q0, 8, increase_only=True)
    with capture_logs() as said:
        await offsets.persist([Q0])
    assert [line["log_level"] for line in said] == ["warning"]


async def test_a_commit_that_is_waited_for_is_served_behind_those_before(
    fake: FakeInstance,
) -> None:
    """A Java broker serves commits in several threads, and takes the one that comes last."""
    update = RequestCode.UPDATE_CONSUMER_OFFSET
    fake.remoting.routes["t"] = route("a")
    served = []

    def serve(_address: str, command: RemotingCommand) -> RemotingCommand:
        served.append(command.header(UpdateConsumerOffsetRequestHeader).commit_offset)
        return response(0)

    fake.remoting.answers[update] = serve
    await fake.instance.routes.refresh("t")
    offsets = RemoteOffsetStore(fake.instance, "g")
    offsets.update(Q0, 6, increase_only=True)
    await offsets.persist([Q0])
    offsets.update(Q0, 7, increase_only=True)
    fake.remoting.late_s[update] = 0.2
    periodic = asyncio.create_task(offsets.persist_oneway([Q0]))
    await until(lambda: fake.remoting.oneways)
    del fake.remoting.late_s[update]
    offsets.update(Q0, 9, increase_only=True)
    await offsets.persist([Q0])
    await periodic
    assert served == [6, 7, 9]


class JavaTables:
    """A broker that makes its table of a group's topic as Java's does: the first commits that it
    serves at once all make one, and the last one made replaces the others."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, int]] = {}
        self.at_once = 0
        self._serving = 0

    async def serve(self, _address: str, _group: str, queue: MessageQueue, offset: int) -> None:
        table = self.tables.get(queue.topic)
        self._serving += 1
        self.at_once = max(self.at_once, self._serving)
        await asyncio.sleep(0.01)
        self._serving -= 1
        if table is None:
            table = self.tables[queue.topic] = {}
        table[queue.queue_id] = offset


async def test_no_first_commit_is_lost_at_a_java_broker(
    fake: FakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.remoting.routes["t"] = route("a", queues=4)
    await fake.instance.routes.refresh("t")
    broker = JavaTables()
    monkeypatch.setattr(fake.instance.brokers, "update_consumer_offset", broker.serve)
    offsets = RemoteOffsetStore(fake.instance, "g")
    queues = [MessageQueue("t", "a", i) for i in range(4)]
    for queue in queues:
        offsets.update(queue, 5, increase_only=True)
        assert offsets.pull_offset(queue) == 0, "a pull would make a table, too"
    # Two hand-overs at once, as when two queues leave for another member.
    await asyncio.gather(offsets.persist(queues[:2]), offsets.persist(queues[2:]))
    assert broker.tables == {"t": dict.fromkeys(range(4), 5)}
    assert broker.at_once == 3, "only the first one is alone"
    assert [offsets.pull_offset(queue) for queue in queues] == [5] * 4


async def test_a_first_commit_that_fails_holds_up_the_others_once(
    fake: FakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.remoting.routes["t"] = route("a", queues=4)
    await fake.instance.routes.refresh("t")
    asked = []

    async def fail(_address: str, _group: str, queue: MessageQueue, _offset: int) -> None:
        asked.append(queue.queue_id)
        alone = len(asked) == 1
        await asyncio.sleep(0.01)
        assert alone == (len(asked) == 1)
        raise RequestTimeoutError("no answer")

    monkeypatch.setattr(fake.instance.brokers, "update_consumer_offset", fail)
    offsets = RemoteOffsetStore(fake.instance, "g")
    queues = [MessageQueue("t", "a", i) for i in range(4)]
    for queue in queues:
        offsets.update(queue, 5, increase_only=True)
    await offsets.persist(queues)
    assert asked == [0, 1, 2, 3]
    assert not any(offsets.pull_offset(queue) for queue in queues)


async def test_a_stored_offset_tells_that_the_broker_has_commits(
    fake: FakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    stored = {Q0: 0, Q1: 3}

    async def query(_address: str, _group: str, queue: MessageQueue) -> int:
        return stored[queue]

    monkeypatch.setattr(fake.instance.brokers, "query_consumer_offset", query)
    offsets = RemoteOffsetStore(fake.instance, "g")
    await offsets.fetch(Q0)  # what a Java broker answers without any commit
    offsets.update(Q0, 4, increase_only=True)
    assert offsets.pull_offset(Q0) == 0
    await offsets.fetch(Q1)
    assert [offsets.pull_offset(queue) for queue in (Q0, Q1)] == [4, 3]


async def test_a_slave_keeps_offsets_while_there_is_no_master(fake: FakeInstance) -> None:
    alone = route("a")
    alone.broker_datas[0].broker_addrs = {1: "slave:1"}
    fake.remoting.routes["t"] = alone
    await fake.instance.routes.refresh("t")
    update = RequestCode.UPDATE_CONSUMER_OFFSET
    fake.remoting.answers[update] = lambda *_: response(ResponseCode.SUCCESS)
    offsets = RemoteOffsetStore(fake.instance, "g")
    offsets.update(Q0, 5, increase_only=True)
    await offsets.persist([Q0])
    await offsets.persist_oneway([Q0])
    assert fake.remoting.called(update) == ["slave:1", "slave:1"]

    both = route("a")
    both.broker_datas[0].broker_addrs = {0: "a:1", 1: "slave:1"}
    fake.remoting.routes["t"] = both
    await fake.instance.routes.refresh("t")
    await offsets.persist([Q0])
    assert fake.remoting.called(update)[2:] == ["a:1"]


async def test_only_a_master_can_say_that_a_group_has_no_offset(fake: FakeInstance) -> None:
    query = RequestCode.QUERY_CONSUMER_OFFSET
    fake.remoting.answers[query] = lambda *_: response(ResponseCode.QUERY_NOT_FOUND)
    offsets = RemoteOffsetStore(fake.instance, "g")
    alone = route("a")
    alone.broker_datas[0].broker_addrs = {1: "slave:1"}
    fake.remoting.routes["t"] = alone
    await fake.instance.routes.refresh("t")
    with pytest.raises(RouteNotFoundError, match="slave:1 has no offset of group g"):
        await offsets.fetch(Q0)
    fake.remoting.answers[query] = lambda *_: response(
        ResponseCode.SUCCESS, header=OffsetResponseHeader(offset=7)
    )
    assert await offsets.fetch(Q0) == 7
    fake.remoting.answers[query] = lambda *_: response(ResponseCode.QUERY_NOT_FOUND)
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    assert await offsets.fetch(Q1) is None
