"""Settings that operators see and change: what is taken, what is refused, and what the file keeps."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.broker_box import HOST, Client
from tests.unit.store.store_box import ManualClock
from tests.waits import until

from cometmq.access.config import AccessConfig
from cometmq.broker.config import BrokerConfig
from cometmq.broker.operation.config_handlers import NOTHING_GIVEN, ConfigHandlers, GivenConfig
from cometmq.broker.topics.topics import TopicManager
from cometmq.model.sysflag import PERM_READ
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.dispatch import Handlers
from cometmq.replication.config import ReplicationConfig
from cometmq.runtime.configuration.config import from_properties, load_properties, parse_properties
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import StateWriter
from cometmq.store.config import StoreConfig

UPDATE, SHOW = 25, 26
ERROR, FORBIDDEN = ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION
CONF = """\
# Orders, first machine.
brokerName=orders-1
brokerIP1=127.0.0.1

# Keep them for long.
fileReservedTime = 72
deleteWhen=04
# Of Java's only.
sendMessageThreadPoolNums=4
configBlackList = slaveReadEnable ; maxTopics
"""


class Desk:
    """An operator, and the settings of a broker that was started with a file or without one."""

    def __init__(self, file: Path | None) -> None:
        given = NOTHING_GIVEN
        if file is not None:
            given = GivenConfig(load_properties(file), file)
        self.config = from_properties(BrokerConfig, given.properties)
        self.store_config = from_properties(StoreConfig, given.properties)
        self.file = file
        self.clock = ManualClock()
        self.topics = TopicManager(self.config, self.clock)
        self.state = StateWriter()
        self.told_store: list[int] = []
        parts = SimpleNamespace(
            state=self.state,
            config=self.config,
            replication=from_properties(ReplicationConfig, given.properties),
            access=from_properties(AccessConfig, given.properties),
            store=SimpleNamespace(
                config=self.store_config,
                settings_changed=lambda: self.told_store.append(
                    self.store_config.file_reserved_time
                ),
            ),
            clock=self.clock,
            topics=self.topics,
        )
        self.handlers = Handlers()
        ConfigHandlers(cast("Any", parts), given).register(self.handlers)
        self.client = Client(cast("Any", self), host=HOST)

    @property
    def kept(self) -> str:
        """The text of the file."""
        assert self.file is not None
        return self.file.read_text()

    async def update(self, **changes: object) -> RemotingCommand:
        text = "".join(f"{key}={value}\n" for key, value in changes.items())
        return await self.client.ask(UPDATE, {}, text.encode())

    async def shown(self) -> dict[str, str]:
        answer = await self.client.ask(SHOW, {})
        assert answer.code == 0
        return parse_properties(bytes(answer.body).decode(), "the answer")

    async def version(self) -> dict[str, int]:
        return dict(json.loads((await self.client.ask(SHOW, {})).ext["version"]))


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(CONF)
    return path


@pytest.fixture
async def new_desk() -> AsyncIterator[Callable[[Path | None], Desk]]:
    desks: list[Desk] = []

    def make(file: Path | None) -> Desk:
        desks.append(Desk(file))
        return desks[-1]

    yield make
    for desk in desks:
        desk.state.close()


@pytest.fixture
async def desk(new_desk: Callable[[Path | None], Desk], conf: Path) -> Desk:
    return new_desk(conf)


async def test_every_key_is_shown_with_the_value_in_force(desk: Desk) -> None:
    shown = await desk.shown()
    assert shown["brokerName"] == "orders-1"
    assert shown["fileReservedTime"] == "72"
    assert shown["flushDiskType"] == "ASYNC_FLUSH", "also what the file does not name"
    assert shown["sendMessageThreadPoolNums"] == "4", "also what means nothing here"
    assert await desk.version() == {"counter": 0, "stateVersion": 0, "timestamp": 0}


async def test_a_change_is_in_force_at_once_and_the_file_keeps_it(desk: Desk, conf: Path) -> None:
    desk.clock.value += 5
    with capture_logs() as logs:
        answer = await desk.update(fileReservedTime=5, maxGroups=10)
    assert (answer.code, answer.remark) == (0, None)
    # The store and the broker read these objects each time.
    assert (desk.store_config.file_reserved_time, desk.config.max_groups) == (5, 10)
    assert desk.told_store == [5], "the store hears of it when it is in force"
    shown = await desk.shown()
    assert (shown["fileReservedTime"], shown["maxGroups"]) == ("5", "10")
    # Of the file only these lines change; comments and order stay.
    assert desk.kept == CONF.replace("fileReservedTime = 72", "fileReservedTime=5") + (
        "maxGroups=10\n"
    )
    assert await desk.version() == {
        "counter": 1,
        "stateVersion": 0,
        "timestamp": desk.clock.value,
    }
    assert [line["changed"] for line in logs] == [{"fileReservedTime": "5", "maxGroups": "10"}]


async def test_what_is_in_force_already_is_no_change(desk: Desk, conf: Path) -> None:
    # Tools send back all that they were shown, with one line changed.
    shown = await desk.shown()
    for blocked in ("configBlackList", "slaveReadEnable", "maxTopics"):
        shown.pop(blocked)
    assert (await desk.update(**{**shown, "fileReservedTime": "6"})).code == 0
    assert desk.store_config.file_reserved_time == 6
    assert desk.kept == CONF.replace("fileReservedTime = 72", "fileReservedTime=6")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fileReservedTim": 1}, "this broker knows no fileReservedTim"),
        ({"namesrvAddr": "10.6.6.6:9876"}, "namesrvAddr cannot be changed while the broker runs"),
        ({"adminFrom": "0.0.0.0/0"}, "adminFrom cannot be changed while the broker runs"),
        ({"aclEnable": "false", "protectedMode": "false"}, "protectedMode cannot be changed"),
        ({"filterPredicateModules": "os"}, "filterPredicateModules cannot be changed"),
        # Java obeys it; a file of Java's may have it.
        ({"sendMessageThreadPoolNums": 9}, "sendMessageThreadPoolNums cannot be changed"),
        ({"rocketmq.client.logRoot": "/"}, "rocketmq.client.logRoot cannot be changed"),
        ({"innerClientAuthenticationCredentials": "x"}, "innerClientAuthenticationCredentials"),
        ({"listenPort": 1}, "listenPort cannot be changed while the broker runs: set it in the"),
        ({"flushDiskType": "SYNC_FLUSH"}, "flushDiskType cannot be changed while the broker runs"),
        ({"fileReservedTime": "soon"}, "fileReservedTime=soon does not fit, it must be a whole"),
        ({"flushIntervalCommitLog": 0}, "flushIntervalCommitLog=0: must be from 1 to"),
        ({"deleteWhen": "25"}, "deleteWhen=25: must be hours of the day"),
        ({"fileReservedTime": 5, "brokerName": "b"}, "brokerName cannot be changed while"),
        ({"fileReservedTime": 5, "maxGroups": "many"}, "maxGroups=many does not fit"),
        (
            {"fileReservedTime": 5, "brokerRole": "SLAVE"},
            "brokerRole cannot be changed while the broker runs",
        ),
    ],
)
async def test_a_change_that_cannot_be_made_changes_nothing(
    desk: Desk, conf: Path, changes: dict[str, object], reason: str
) -> None:
    before = await desk.shown()
    answer = await desk.update(**changes)
    assert answer.code == ERROR
    assert answer.remark is not None
    assert reason in answer.remark
    assert f"the update from {HOST}:4711" in answer.remark, "logs say whose it was"
    assert await desk.shown() == before
    assert (await desk.version())["counter"] == 0
    assert desk.kept == CONF
    assert desk.told_store == []


@pytest.mark.parametrize(
    "key", ["brokerConfigPath", "rocketmqHome", "configBlackList", "slaveReadEnable", "maxTopics"]
)
async def test_a_key_of_the_black_list_is_never_changed(desk: Desk, key: str) -> None:
    answer = await desk.update(**{key: "1", "fileReservedTime": 5})
    assert (answer.code, answer.remark) == (FORBIDDEN, "Can not update config in black list.")
    assert desk.store_config.file_reserved_time == 72


async def test_without_a_black_list_the_keys_may_be_changed(
    new_desk: Callable[[Path | None], Desk],
) -> None:
    desk = new_desk(None)
    assert (await desk.update(slaveReadEnable="true")).code == 0
    assert desk.config.slave_read_enable is True


def appended(conf: Path, lines: str) -> Path:
    conf.write_text(f"{conf.read_text()}{lines}")
    return conf


async def test_secrets_are_not_shown_and_stay_in_the_file(
    new_desk: Callable[[Path | None], Desk], conf: Path
) -> None:
    secrets = {
        "innerClientAuthenticationCredentials": '{"accessKey":"broker","secretKey":"s3cret"}',
        "tls.server.keyPassword": "s3cret",
    }
    lines = "".join(f"{key}={value}\n" for key, value in secrets.items())
    desk = new_desk(appended(conf, lines))
    shown = await desk.shown()
    assert not {"s3cret" in value for value in shown.values()} & {True}
    assert not secrets.keys() & shown.keys()
    # Whoever guesses it learns nothing, and what was shown may be sent back.
    for key, value in secrets.items():
        assert (await desk.update(**{key: value})).code == ERROR
    assert lines in desk.kept


async def test_an_update_that_is_no_text_is_refused(desk: Desk) -> None:
    answer = await desk.client.ask(UPDATE, {}, b"fileReservedTime=\xff")
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "is not UTF-8" in answer.remark


async def test_name_servers_hear_of_a_new_permission_and_of_nothing_else(desk: Desk) -> None:
    reported: list[object] = []
    desk.topics.on_change.append(reported.append)
    assert (await desk.update(fileReservedTime=5)).code == 0
    assert reported == []
    assert (await desk.update(brokerPermission=PERM_READ)).code == 0
    assert reported == [[]], "all topics are to be registered anew"
    assert (await desk.update(brokerPermission=PERM_READ)).code == 0
    assert reported == [[]]


async def test_without_a_file_a_change_ends_with_the_broker_and_the_log_says_so(
    new_desk: Callable[[Path | None], Desk],
) -> None:
    desk = new_desk(None)
    with capture_logs() as logs:
        assert (await desk.update(fileReservedTime=5)).code == 0
    assert desk.store_config.file_reserved_time == 5
    assert "no configuration file was given, the change ends with this broker" in [
        line["event"] for line in logs
    ]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk that takes no configuration file while it is `full`."""
    disk = SimpleNamespace(full=True)
    write = JsonFile.write

    def limited(file: JsonFile, *args: Any, **options: Any) -> None:
        if disk.full:
            raise OSError(28, "No space left on device")
        write(file, *args, **options)

    monkeypatch.setattr(JsonFile, "write", limited)
    return disk


async def test_a_file_that_cannot_be_written_is_told_and_gets_every_change_later(
    desk: Desk, conf: Path, full_disk: SimpleNamespace
) -> None:
    answer = await desk.update(fileReservedTime=5)
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "the change is in force" in answer.remark
    assert f"{conf} could not be written" in answer.remark
    assert "No space left on device" in answer.remark
    assert desk.store_config.file_reserved_time == 5
    full_disk.full = False
    # The next change brings the one before it along.
    assert (await desk.update(maxGroups=10)).code == 0
    text = desk.kept
    assert "fileReservedTime=5\n" in text
    assert "maxGroups=10\n" in text


async def test_a_file_is_written_by_itself_once_it_can_be(
    desk: Desk, conf: Path, full_disk: SimpleNamespace
) -> None:
    assert (await desk.update(fileReservedTime=5)).code == ERROR
    full_disk.full = False
    await until(lambda: "fileReservedTime=5\n" in desk.kept)


async def test_two_operators_at_once_both_have_their_change_kept(desk: Desk, conf: Path) -> None:
    answers = await asyncio.gather(desk.update(fileReservedTime=5), desk.update(maxGroups=10))
    assert [answer.code for answer in answers] == [0, 0]
    assert "fileReservedTime=5\n" in desk.kept
    assert "maxGroups=10\n" in desk.kept
    assert (await desk.version())["counter"] == 2


async def test_keys_that_mqadmin_needs_are_shown_and_may_be_sent_back(desk: Desk) -> None:
    shown = await desk.shown()
    assert (shown["brokerRole"], shown["filterServerNums"], shown["useTLS"]) == (
        "ASYNC_MASTER",
        "0",
        "false",
    )
    assert (await desk.update(**{key: shown[key] for key in ("brokerRole", "useTLS")})).code == 0
    for key, value in (("brokerRole", "SLAVE"), ("useTLS", "true"), ("filterServerNums", "1")):
        answer = await desk.update(**{key: value})
        assert answer.code == ERROR
        assert key in str(answer.remark)


async def test_mqadmin_exports_metrics_with_the_number_of_processors(desk: Desk) -> None:
    """It takes them from this key, which a Java broker shows as it has it from its client."""
    assert int((await desk.shown())["clientCallbackExecutorThreads"]) == os.cpu_count()


async def test_a_role_is_for_the_next_start(
    new_desk: Callable[[Path | None], Desk], tmp_path: Path
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerRole=SYNC_MASTER\n")
    desk = new_desk(path)
    assert (await desk.shown())["brokerRole"] == "SYNC_MASTER"
    answer = await desk.update(brokerRole="ASYNC_MASTER")
    assert answer.code == ERROR
    assert "brokerRole cannot be changed while the broker runs" in str(answer.remark)
    assert (await desk.shown())["brokerRole"] == "SYNC_MASTER"


async def test_a_short_update_does_not_overtake_a_long_one(desk: Desk) -> None:
    """Long updates are read in steps: what came first over a connection must not win."""
    long = "".join(f"fileReservedTime={hours}\n" for hours in range(1_500))
    first = desk.client.send(UPDATE, {}, long.encode())
    assert (await desk.update(fileReservedTime=71)).code == 0
    assert desk.client.answers()[first].code == 0
    assert desk.told_store == [1_499, 71]


async def test_an_update_with_thousands_of_wrong_keys_lets_others_be_served(desk: Desk) -> None:
    wrong = "".join(f"wrng{number}=1\n" for number in range(3_000))
    opaque = desk.client.send(UPDATE, {}, wrong.encode())
    turns = 0
    while opaque not in desk.client.answers():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20
    refused = desk.client.answers()[opaque]
    assert refused.code != 0
    assert "has 3000 mistakes" in (refused.remark or "")
