"""Test the settings that an operator sees and changes while the broker runs, and its answers about
them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.integration.own_broker import OwnBroker
from tests.integration.raw_client import Command, RawClient, properties, pull_ext, send_ext
from tests.waits import eventually

from cometmq.admin import AdminClient
from cometmq.broker.config import BrokerConfig
from cometmq.broker.operation.config_handlers import LIVE_KEYS, GivenConfig
from cometmq.errors import RemoteError
from cometmq.runtime.configuration.config import (
    from_properties,
    keys_of,
    load_properties,
    parse_properties,
)
from cometmq.store.config import LIVE_KEYS as LIVE_STORE_KEYS
from cometmq.store.config import StoreConfig
from cometmq.testing import Cluster

SEND, PULL, QUERY, COMMIT, END = 10, 11, 12, 15, 37
UPDATE_CONFIG, GET_CONFIG, RUNTIME_INFO, ROUTE = 25, 26, 28, 105
FLUSH_DISK_TIMEOUT, PULL_NOT_FOUND = 10, 19
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
CONF = """\
# Orders, first machine.
brokerName=orders-1
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort=0
timerWheelEnable=false
mappedFileSizeCommitLog=4096
mappedFileSizeConsumeQueue=2000

# Keep them for long.
fileReservedTime = 72
deleteWhen=
cleanResourceInterval=50
flushIntervalCommitLog=20
flushCommitLogLeastPages=100
flushCommitLogThoroughInterval=100000000
# Of Java's only.
sendMessageThreadPoolNums=4
configBlackList=fetchNamesrvAddrByAddressServer;slaveReadEnable
"""

T = TypeVar("T")


def new_site(conf: Path, *, with_file: bool = True) -> OwnBroker:
    """Return a broker as `cometmq broker -c FILE` makes it."""
    properties = {**load_properties(conf), "storePathRootDir": str(conf.parent / "store")}
    return OwnBroker(
        from_properties(BrokerConfig, properties),
        from_properties(StoreConfig, properties),
        given=GivenConfig(properties, conf if with_file else None),
    )


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(CONF)
    return path


@pytest.fixture
def site(conf: Path) -> Iterator[OwnBroker]:
    with new_site(conf) as site:
        yield site


@pytest.fixture
def client(site: OwnBroker) -> Iterator[RawClient]:
    with RawClient(site.address) as client:
        yield client


def update(client: RawClient, **changes: object) -> Command:
    text = "".join(f"{key}={value}\n" for key, value in changes.items())
    return client.ask(UPDATE_CONFIG, body=text.encode())


def shown(client: RawClient) -> dict[str, str]:
    answer = client.ask(GET_CONFIG)
    assert answer.code == 0
    return parse_properties(answer.body.decode(), "the answer")


def asked(call: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
    async def ask() -> T:
        async with AdminClient([]) as admin:
            return await call(admin)

    return asyncio.run(ask())


def fill(client: RawClient, files: int) -> None:
    for _ in range(files * 4):
        assert client.ask(SEND, send_ext("T"), b"x" * 900).code == 0


def test_every_setting_is_shown(client: RawClient) -> None:
    answer = client.ask(GET_CONFIG)
    assert '"counter":0' in answer.ext["version"]
    found = shown(client)
    assert found["brokerName"] == "orders-1"
    assert found["fileReservedTime"] == "72"
    assert found["flushDiskType"] == "ASYNC_FLUSH"
    # A key of Java's that means nothing here passes through.
    assert found["sendMessageThreadPoolNums"] == "4"


def test_retention_obeys_at_once_and_the_file_keeps_it(
    site: OwnBroker, client: RawClient, conf: Path
) -> None:
    fill(client, 5)
    store = site.broker.store
    store.flush_commit_log()  # no file goes before, and its timer waits for more
    long_ago = time.time() - 2 * 3600
    for path in store.config.commit_log_path.iterdir():
        os.utime(path, (long_ago, long_ago))
    assert store.commit_log.min_offset == 0
    assert update(client, fileReservedTime=1, deleteWhen=EVERY_HOUR).code == 0
    eventually(lambda: store.commit_log.min_offset > 0)
    assert shown(client)["fileReservedTime"] == "1"
    assert '"counter":1' in client.ask(GET_CONFIG).ext["version"]
    text = CONF.replace("fileReservedTime = 72", "fileReservedTime=1")
    assert conf.read_text() == text.replace("deleteWhen=", f"deleteWhen={EVERY_HOUR}")
    assert load_properties(conf.with_name("broker.conf.bak"))["fileReservedTime"] == "72"


def test_a_changed_file_is_what_the_next_start_reads(conf: Path) -> None:
    with new_site(conf) as site, RawClient(site.address) as client:
        assert update(client, diskMaxUsedSpaceRatio=60).code == 0
    with new_site(conf) as site:
        assert site.broker.store.config.disk_max_used_space_ratio == 60


def test_flushing_obeys_at_once(site: OwnBroker, client: RawClient) -> None:
    store = site.broker.store
    assert client.ask(SEND, send_ext("T"), b"x").code == 0
    assert store.flushed_offset == 0
    assert update(client, flushCommitLogThoroughInterval=1).code == 0
    eventually(lambda: store.flushed_offset == store.commit_log.end)


def test_pulls_obey_at_once(client: RawClient) -> None:
    for _ in range(5):
        assert client.ask(SEND, send_ext("T"), b"x").code == 0
    assert client.ask(PULL, pull_ext("T")).ext["nextBeginOffset"] == "5"
    assert update(client, maxTransferCountOnMessageInMemory=2).code == 0
    assert client.ask(PULL, pull_ext("T")).ext["nextBeginOffset"] == "2"


def test_waiting_for_the_disk_obeys_at_once_and_the_file_keeps_it(conf: Path) -> None:
    conf.write_text(f"{CONF}flushDiskType=SYNC_FLUSH\nsyncFlushTimeout=100000000\n")
    with new_site(conf) as site, RawClient(site.address) as waiting, RawClient(site.address) as raw:
        assert raw.ask(SEND, send_ext("T"), b"x").code == 0
        site.disk.may_sync.clear()
        opaque = waiting.send(SEND, send_ext("T"), b"y")
        # Sends that wait already obey, too.
        assert update(raw, syncFlushTimeout=1).code == 0
        assert waiting.answer(opaque).code == FLUSH_DISK_TIMEOUT
        assert raw.ask(SEND, send_ext("T"), b"z").code == FLUSH_DISK_TIMEOUT
        assert load_properties(conf)["syncFlushTimeout"] == "1"


def test_the_limit_of_a_busy_disk_obeys_at_once_and_the_file_keeps_it(conf: Path) -> None:
    conf.write_text(f"{CONF}osPageCacheBusyTimeOutMills=100000000\n")
    with new_site(conf) as site, RawClient(site.address) as raw:
        site.disk.may_sync.clear()
        assert raw.ask(SEND, send_ext("T"), b"x").code == 0
        assert update(raw, flushCommitLogThoroughInterval=1).code == 0
        eventually(lambda: site.disk.begun > 0)
        assert raw.ask(SEND, send_ext("T"), b"x").code == 0
        assert update(raw, osPageCacheBusyTimeOutMills=1).code == 0

        def refusal() -> str:
            return raw.ask(SEND, send_ext("T"), b"x").remark or ""

        assert "osPageCacheBusyTimeOutMills=1;" in eventually(refusal)
        assert load_properties(conf)["osPageCacheBusyTimeOutMills"] == "1"
        assert update(raw, osPageCacheBusyTimeOutMills=100000000).code == 0
        eventually(lambda: not refusal())


def test_failing_fast_without_buffers_obeys_at_once_and_the_file_keeps_it(conf: Path) -> None:
    # No timer empties the buffers, and each is one file of 4 KiB.
    conf.write_text(f"{CONF}transientStorePoolEnable=true\ncommitIntervalCommitLog=100000000\n")
    with new_site(conf) as site, RawClient(site.address) as raw:
        assert update(raw, fastFailIfNoBufferInStorePool="true").code == 0

        def refusal() -> str:
            return raw.ask(SEND, send_ext("T"), b"x" * 900).remark or ""

        refused = eventually(refusal)
        assert "[REJECTREQUEST]" in refused
        assert "send again in 100000000 ms" in refused
        assert load_properties(conf)["fastFailIfNoBufferInStorePool"] == "true"
        assert update(raw, fastFailIfNoBufferInStorePool="false").code == 0
        assert not refusal()


def test_the_index_is_built_or_not_at_once_and_the_file_keeps_it(
    client: RawClient, conf: Path
) -> None:
    keyed = properties({"KEYS": "k"})
    question = {
        "topic": "T",
        "key": "k",
        "maxNum": 9,
        "beginTimestamp": 0,
        "endTimestamp": 2**62,
    }

    def send() -> None:
        assert client.ask(SEND, send_ext("T", properties=keyed), b"x").code == 0

    def found() -> int:
        return client.ask(QUERY, question).body.count(b"KEYS\x01k")

    send()
    assert eventually(found) == 1
    assert update(client, messageIndexEnable="false").code == 0
    assert load_properties(conf)["messageIndexEnable"] == "false"
    send()
    assert found() == 1  # a query brings an index that is built up to date
    # What was stored meanwhile is indexed, too.
    assert update(client, messageIndexEnable="true").code == 0
    eventually(lambda: found() == 2)


def test_an_index_that_is_not_built_any_more_is_kept(conf: Path) -> None:
    keyed = properties({"KEYS": "k"})
    with new_site(conf) as site, RawClient(site.address) as raw:
        assert raw.ask(SEND, send_ext("T", properties=keyed), b"x").code == 0
        eventually(lambda: site.broker.store.index.lag_bytes == 0)
        assert update(raw, messageIndexEnable="false").code == 0
        assert raw.ask(SEND, send_ext("T", properties=keyed), b"x").code == 0
        position = site.broker.store.index.position
    with new_site(conf) as site, RawClient(site.address) as raw:
        index = site.broker.store.index
        assert not index.enabled
        assert index.position <= position
        assert update(raw, messageIndexEnable="true").code == 0
        eventually(lambda: index.position == site.broker.store.commit_log.end)


def test_the_index_rested_before_the_pool_had_written_the_last_message(conf: Path) -> None:
    conf.write_text(f"{CONF}transientStorePoolEnable=true\ncommitIntervalCommitLog=1500\n")
    with new_site(conf) as site, RawClient(site.address) as raw:
        assert raw.ask(SEND, send_ext("T", properties=properties({"KEYS": "k"})), b"x").code == 0
        log = site.broker.store.commit_log
        assert log.readable_end < log.end
        eventually(lambda: site.broker.store.index.position == log.end)


def test_limits_of_pulls_and_offsets_obey_at_once_and_the_file_keeps_them(
    client: RawClient, conf: Path
) -> None:
    assert client.ask(SEND, send_ext("T"), b"x").code == 0
    # A pull that waits is answered much later than this test lasts.
    waiting = pull_ext("T", queueOffset=1, sysFlag=6, suspendTimeoutMillis=100_000_000)
    assert update(client, maxHeldPulls=0).code == 0
    assert client.ask(PULL, waiting).code == PULL_NOT_FOUND

    def commit(queue_id: int) -> Command:
        ext = {"consumerGroup": "raw-group", "topic": "T", "queueId": queue_id}
        return client.ask(COMMIT, {**ext, "commitOffset": 0})

    assert update(client, maxConsumerOffsets=1).code == 0
    assert commit(0).code == 0
    refused = commit(1)
    assert refused.code == 1
    assert "maxConsumerOffsets is 1; raise it" in (refused.remark or "")
    assert update(client, maxConsumerOffsets=2).code == 0
    assert commit(1).code == 0
    kept = load_properties(conf)
    assert (kept["maxHeldPulls"], kept["maxConsumerOffsets"]) == ("0", "2")


def test_records_of_ended_transactions_obey_at_once(conf: Path) -> None:
    # From the start: a wait that is under way when the key changes goes on.
    conf.write_text(f"{CONF}transactionOpBatchInterval=100000000\n")
    with new_site(conf) as site, RawClient(site.address) as client:

        def written() -> int:
            queue = site.broker.store.queues.find("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
            return 0 if queue is None else queue.next_offset

        def end_one() -> None:
            """End a transaction one-way: the record of an answered verdict is written at once."""
            end = site.broker.store.max_offset("T", 0)
            values = {"TRAN_MSG": "true", "PGROUP": "g"}
            ext = send_ext("T", properties=properties(values), producerGroup="g", sysFlag=4)
            half = client.ask(SEND, ext, b"half").ext
            verdict = {
                "producerGroup": "g",
                "tranStateTableOffset": half["queueOffset"],
                "commitLogOffset": int(half["msgId"][16:], 16),
                "commitOrRollback": 8,
                "msgId": half["msgId"],
            }
            client.send(END, verdict, flag=2)
            eventually(lambda: site.broker.store.max_offset("T", 0) == end + 1)

        before = written()
        end_one()
        assert written() == before
        assert update(client, transactionOpMsgMaxSize=1).code == 0
        end_one()
        eventually(lambda: written() == before + 1)
        assert load_properties(conf)["transactionOpMsgMaxSize"] == "1"


def test_switches_of_the_broker_obey_at_once(client: RawClient) -> None:
    assert update(client, autoCreateTopicEnable="false").code == 0
    assert client.ask(SEND, send_ext("another"), b"x").code == 17
    assert update(client, autoCreateTopicEnable="true").code == 0
    assert client.ask(SEND, send_ext("another"), b"x").code == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fileReservedTim": 1}, "this broker knows no fileReservedTim"),
        ({"listenPort": 1}, "listenPort cannot be changed while the broker runs: set it in the"),
        ({"flushDiskType": "SYNC_FLUSH"}, "flushDiskType cannot be changed while the broker runs"),
        ({"storePathCommitLog": "/x"}, "storePathCommitLog cannot be changed while the broker"),
        ({"deleteWhen": "25"}, "deleteWhen=25: must be hours of the day"),
        ({"fileReservedTime": "soon"}, "fileReservedTime=soon does not fit, it must be a whole"),
        ({"flushIntervalCommitLog": 0}, "flushIntervalCommitLog=0: must be from 1 to"),
        ({"diskMaxUsedSpaceRatio": 60, "brokerName": "b"}, "brokerName cannot be changed while"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_a_reason(
    client: RawClient, conf: Path, changes: dict[str, object], reason: str
) -> None:
    before = shown(client)
    answer = update(client, **changes)
    assert answer.code == 1
    assert reason in (answer.remark or "")
    # Either all changes are made or none.
    assert shown(client) == before
    assert conf.read_text() == CONF


def test_a_value_that_is_in_force_already_is_no_change(client: RawClient) -> None:
    assert update(client, brokerName="orders-1", flushDiskType="ASYNC_FLUSH").code == 0
    assert client.ask(UPDATE_CONFIG).code == 0


@pytest.mark.parametrize("key", ["rocketmqHome", "brokerConfigPath", "slaveReadEnable"])
def test_the_black_list(client: RawClient, key: str) -> None:
    answer = update(client, **{key: "true"})
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")


def test_an_update_that_is_no_text(client: RawClient) -> None:
    answer = client.ask(UPDATE_CONFIG, body=b"fileReservedTime=\xff")
    assert answer.code == 1
    assert "is not UTF-8" in (answer.remark or "")


def test_a_file_that_cannot_be_written_is_told(
    site: OwnBroker, client: RawClient, conf: Path
) -> None:
    conf.unlink()
    answer = update(client, fileReservedTime=5)
    assert answer.code == 1
    assert f"the change is in force but {conf} could not be written" in (answer.remark or "")
    assert site.broker.store.config.file_reserved_time == 5


def test_without_a_file_a_change_ends_with_the_broker(conf: Path) -> None:
    with new_site(conf, with_file=False) as site, RawClient(site.address) as client:
        assert update(client, fileReservedTime=5).code == 0
        assert shown(client)["fileReservedTime"] == "5"
    assert conf.read_text() == CONF


def test_name_servers_learn_of_a_new_permission() -> None:
    with (
        Cluster() as cluster,
        RawClient(cluster.namesrv) as namesrv,
        RawClient(f"127.0.0.1:{cluster.brokers[0].port}") as client,
    ):
        assert client.ask(SEND, send_ext("T"), b"x").code == 0
        eventually(lambda: b'"perm":6' in namesrv.ask(ROUTE, {"topic": "T"}).body)
        assert update(client, brokerPermission=4).code == 0
        eventually(lambda: b'"perm":4' in namesrv.ask(ROUTE, {"topic": "T"}).body)


def test_live_keys_are_keys() -> None:
    assert set(keys_of(BrokerConfig)) >= LIVE_KEYS
    assert set(keys_of(StoreConfig)) >= LIVE_STORE_KEYS


# -- what the broker tells of itself --


def test_runtime_info_has_javas_keys(site: OwnBroker, client: RawClient) -> None:
    assert client.ask(SEND, send_ext("T"), b"x").code == 0
    info = asked(lambda admin: admin.brokers.runtime_info(broker=site.address))[site.address]
    assert info["brokerVersionDesc"] == "V5_3_3"
    assert info["commitLogMinOffset"] == "0"
    assert int(info["commitLogMaxOffset"]) == site.broker.store.commit_log.end
    assert info["remainHowManyDataToFlush"].endswith(" B")
    assert info["commitLogDirCapacity"] == "Total : 100.0 GiB, Free : 50.0 GiB."
    assert info["commitLogDiskRatio"] == info["consumeQueueDiskRatio"] == "0.5"
    assert int(info["earliestMessageTimeStamp"]) > 1_700_000_000_000
    assert info["dispatchBehindBytes"] == "0"
    assert info["runtime"].startswith("[ 0 days, 0 hours, ")


def test_the_next_file_to_go_is_told_and_why(site: OwnBroker, client: RawClient) -> None:
    assert (
        asked(lambda admin: admin.brokers.next_deletions(broker=site.address))[site.address] is None
    )
    fill(client, 3)
    found = asked(lambda admin: admin.brokers.next_deletions(broker=site.address))[site.address]
    assert found is not None
    assert found.file == str(site.broker.store.config.commit_log_path / f"{0:020d}")
    assert "changed less than 72 h ago (fileReservedTime), it expires in 72 h" in found.reason
    # With deleteWhen= only a full disk makes the file go.
    assert found.when_ms is None
    asked(
        lambda admin: admin.brokers.update_config({"deleteWhen": EVERY_HOUR}, broker=site.address)
    )
    found = asked(lambda admin: admin.brokers.next_deletions(broker=site.address))[site.address]
    assert found is not None
    assert found.when_ms is not None
    assert abs(found.when_ms - (time.time() + 72 * 3600) * 1000) < 3600_000


def test_refusals_are_counted_by_cause(site: OwnBroker, client: RawClient) -> None:
    refusals = asked(lambda admin: admin.brokers.refusals(broker=site.address))[site.address]
    assert set(refusals) == {
        "store_closed", "disk_failed", "disk_full", "page_cache_busy", "no_space", "no_buffer",
        "no_descriptor", "message_illegal",
    }  # fmt: skip
    assert set(refusals.values()) == {0}
    low = {"diskSpaceCleanForciblyRatio": "30", "diskSpaceWarningLevelRatio": "35"}
    asked(lambda admin: admin.brokers.update_config(low, broker=site.address))
    eventually(lambda: client.ask(SEND, send_ext("T"), b"x").code == 14)
    info = asked(lambda admin: admin.brokers.runtime_info(broker=site.address))[site.address]
    assert int(info["refused_disk_full"]) >= 1
    assert "diskSpaceWarningLevelRatio" in info["refusing"]


def test_the_admin_side_of_the_configuration(site: OwnBroker) -> None:
    changes = {"fileReservedTime": "5", "deleteWhen": "03;04"}
    asked(lambda admin: admin.brokers.update_config(changes, broker=site.address))
    found = asked(lambda admin: admin.brokers.config(broker=site.address))[site.address]
    assert {key: found[key] for key in changes} == changes
    asked(lambda admin: admin.brokers.delete_expired_files(broker=site.address))
    with pytest.raises(RemoteError, match="the change of listenPort was refused by"):
        asked(lambda admin: admin.brokers.update_config({"listenPort": "1"}, broker=site.address))
