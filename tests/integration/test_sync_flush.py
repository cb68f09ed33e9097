"""Test SYNC_FLUSH: a send is answered when the disk has it, and one fdatasync serves many sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.own_broker import OwnBroker, nameless
from tests.integration.raw_client import ONEWAY, RawClient, properties, pull_ext, send_ext
from tests.waits import eventually

from cometmq.errors import StoreError
from cometmq.store.config import StoreConfig

SEND, PULL = 10, 11
OK, SYSTEM_ERROR, FLUSH_DISK_TIMEOUT, SERVICE_NOT_AVAILABLE = 0, 1, 10, 14


class Site(OwnBroker):
    """Runs a broker that flushes on demand only."""

    def __init__(self, root: Path, sync_flush_timeout: int) -> None:
        super().__init__(
            nameless(),
            StoreConfig(
                store_path_root_dir=root,
                mapped_file_size_commit_log=1 << 20,
                flush_disk_type="SYNC_FLUSH",
                # The timer of asynchronous flushes must not interfere.
                flush_interval_commit_log=3_600_000,
                sync_flush_timeout=sync_flush_timeout,
            ),
        )


@pytest.fixture
def timeout_ms() -> int:
    """Return a time-out that is longer than a test takes, unless the test says otherwise."""
    return 600_000


@pytest.fixture
def site(tmp_path: Path, timeout_ms: int) -> Iterator[Site]:
    with Site(tmp_path / "store", timeout_ms) as site:
        yield site


def begin(client: RawClient, body: bytes = b"x", **texts: str) -> int:
    return client.send(SEND, send_ext("T", properties=properties(texts)), body)


def stored_count(site: Site) -> int:
    return site.broker.store.max_offset("T", 0)


def test_a_send_is_answered_when_the_disk_has_it(site: Site) -> None:
    with site.client() as client:
        for number in range(3):
            assert client.answer(begin(client)).code == OK
            assert site.broker.store.flushed_offset == site.broker.store.commit_log.end
            assert site.disk.begun == number + 1


def test_one_sync_serves_all_that_wait(site: Site) -> None:
    with site.client() as first, site.client() as second:
        site.disk.may_sync.clear()
        alone = begin(first)
        eventually(lambda: site.disk.begun == 1)
        group = [(client, begin(client)) for _ in range(20) for client in (first, second)]
        eventually(lambda: stored_count(site) == 41)
        assert first.silent(0.05)
        assert second.silent(0.05)
        site.disk.may_sync.set()
        assert first.answer(alone).code == OK
        assert {client.answer(opaque).code for client, opaque in group} == {OK}
        assert site.disk.begun == 2


def test_who_does_not_want_to_wait_does_not(site: Site) -> None:
    with site.client() as client, site.client() as other:
        site.disk.may_sync.clear()
        waiting = begin(client)
        eventually(lambda: site.disk.begun == 1)
        assert other.answer(begin(other, WAIT="false")).code == OK
        assert stored_count(site) == 2
        assert client.silent(0.05)
        site.disk.may_sync.set()
        assert client.answer(waiting).code == OK


@pytest.mark.parametrize("timeout_ms", [100])
def test_a_disk_that_hangs_is_a_flush_disk_timeout(site: Site) -> None:
    with site.client() as client:
        site.disk.may_sync.clear()
        # A send that comes while the disk hangs is answered in time, too.
        late = [begin(client)]
        eventually(lambda: site.disk.begun == 1)
        late.append(begin(client))
        for opaque in late:
            answer = client.answer(opaque)
            assert answer.code == FLUSH_DISK_TIMEOUT
            assert answer.ext["msgId"]
        site.disk.may_sync.set()
        # A busy machine may once more take longer than this limit.
        eventually(lambda: client.answer(begin(client)).code == OK)
        # The messages stay: a producer that sends again stores them twice.
        pulled = client.ask(PULL, pull_ext("T"))
        assert int(pulled.ext["nextBeginOffset"]) == stored_count(site) >= 3


def test_a_disk_that_fails_acknowledges_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = stack.enter_context(Site(tmp_path / "store", 600_000))
        with site.client() as client:
            site.disk.broken = True
            answer = client.answer(begin(client))
            assert answer.code == SYSTEM_ERROR, "it is in the log, so it may come up again"
            assert "Input/output error" in str(answer.remark)
            assert client.answer(begin(client)).code == SERVICE_NOT_AVAILABLE
            assert site.disk.begun == 1, "a sync that failed is not tried again"
        with pytest.raises(StoreError):
            stack.close()


def test_a_oneway_send_is_flushed_without_an_answer(site: Site) -> None:
    with site.client() as client:
        client.send(SEND, send_ext("T"), b"x", flag=ONEWAY)
        eventually(lambda: site.disk.begun == 1)
        assert client.silent(0.05)


def test_the_limit_of_rocketmq_is_five_seconds() -> None:
    assert StoreConfig().sync_flush_timeout == 5000
