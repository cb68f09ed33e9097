"""A broker opens its services in order, closes them in reverse, and closes what a failed start opened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waits import WAIT_S

from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.service import Delays
from cometmq.broker.filters.service import Filters
from cometmq.broker.groups.service import Groups
from cometmq.broker.operation.registration import Registration
from cometmq.broker.operation.service import Operation
from cometmq.broker.parts import Service
from cometmq.broker.pulls.service import Pulls
from cometmq.broker.pulls.waiting import Waiting
from cometmq.broker.retries.service import Retries
from cometmq.broker.sends.service import Sends
from cometmq.broker.server import Broker
from cometmq.broker.storage.service import Storage
from cometmq.broker.tables import BrokerTables
from cometmq.broker.transactions.service import TransactionService
from cometmq.errors import ConfigError
from cometmq.remoting.server import RemotingServer
from cometmq.runtime.state_files.state_writer import StateWriter
from cometmq.runtime.tasks import TaskOwner
from cometmq.store.config import StoreConfig
from cometmq.store.store import MessageStore
from cometmq.testing.ports import HeldPort

SERVICES: tuple[type[Service], ...] = (
    Delays, Groups, Retries, TransactionService, Sends, Filters, Pulls, Operation, Storage,
)  # fmt: skip
AROUND: tuple[tuple[type, str], ...] = (
    (Registration, "close"),
    (Waiting, "release_all"),
    (RemotingServer, "close"),
    (BrokerTables, "save"),
    (StateWriter, "close"),
    (BrokerTables, "close"),
    (MessageStore, "close"),
)


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port that no other process takes between two brokers."""
    with HeldPort() as held:
        yield held.port


def new_broker(directory: Path, port: int = 0) -> Broker:
    config = BrokerConfig(
        broker_name="a", broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=port
    )
    return Broker(
        config, StoreConfig(store_path_root_dir=directory, mapped_file_size_commit_log=65536)
    )


class Story:
    """Keeps the methods of interest that were called, as `Class.method`, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reported: list[str] = []
        self._monkeypatch = monkeypatch
        for service in SERVICES:
            for name in ("open", "start", "close"):
                self._follow(service, name)
        for owner, name in AROUND:
            self._follow(owner, name)
        end_tasks = TaskOwner.close

        async def tasks_close(owner: TaskOwner) -> None:
            if owner.name == "broker":
                self.reported.append("TaskOwner.close")
            await end_tasks(owner)

        monkeypatch.setattr(TaskOwner, "close", tasks_close)

    def _follow(self, owner: type, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        def followed(self_: object, *arguments: Any, **named: Any) -> Any:
            self.reported.append(f"{owner.__name__}.{name}")
            return method(self_, *arguments, **named)

        self._monkeypatch.setattr(owner, name, followed)

    def of(self, method: str) -> list[str]:
        return [each.partition(".")[0] for each in self.reported if each.endswith(f".{method}")]


def names(services: tuple[type[Service], ...]) -> list[str]:
    return [service.__name__ for service in services]


async def test_services_open_and_start_in_order_and_close_in_reverse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(monkeypatch)
    broker = new_broker(tmp_path)
    await broker.start()
    assert story.reported == [f"{n}.open" for n in names(SERVICES)] + [
        f"{n}.start" for n in names(SERVICES)
    ]
    story.reported.clear()
    await broker.close()
    # The second call of each of these does nothing.
    reported = list(dict.fromkeys(story.reported))
    assert reported == [
        "Registration.close",
        "Waiting.release_all",
        "RemotingServer.close",
        "TaskOwner.close",
        *(f"{n}.close" for n in reversed(names(SERVICES))),
        "BrokerTables.save",
        "StateWriter.close",
        "BrokerTables.close",
        "MessageStore.close",
    ]
    story.reported.clear()
    await broker.close()
    assert story.reported == []


@pytest.mark.parametrize("place", range(len(SERVICES)), ids=names(SERVICES))
@pytest.mark.parametrize("step", ["open", "start"])
async def test_a_start_that_fails_closes_what_it_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, place: int, step: str
) -> None:
    tasks = asyncio.all_tasks()
    with monkeypatch.context() as patch:
        story = Story(patch)

        def fail(_service: Service) -> Awaitable[None]:
            raise ConfigError("it is to fail")

        patch.setattr(SERVICES[place], step, fail)
        broker = new_broker(tmp_path, port)
        with pytest.raises(ConfigError, match="it is to fail"):
            await broker.start()
    opened = SERVICES[:place] if step == "open" else SERVICES
    assert story.of("start") == ([] if step == "open" else names(SERVICES[:place]))
    closed = [name for name in story.of("close") if name in names(SERVICES)]
    assert closed == list(reversed(names(opened)))
    # No task is left; the port and the lock of the store are free.
    assert asyncio.all_tasks() == tasks
    again = new_broker(tmp_path, port)
    await again.start()
    await again.close()
    assert asyncio.all_tasks() == tasks


async def test_a_close_during_the_start_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    tasks = asyncio.all_tasks()
    opening, go_on = threading.Event(), threading.Event()
    open_store = MessageStore.open

    def slow(store: MessageStore, *arguments: Any) -> None:
        opening.set()
        assert go_on.wait(WAIT_S)
        open_store(store, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "open", slow)
        broker = new_broker(tmp_path, port)
        starting = asyncio.create_task(broker.start())
        await asyncio.to_thread(opening.wait, WAIT_S)
        await broker.close()
        go_on.set()
        with pytest.raises(ConfigError, match="a was closed while it started"):
            await starting
    assert asyncio.all_tasks() == tasks
    again = new_broker(tmp_path, port)
    await again.start()
    await again.close()
