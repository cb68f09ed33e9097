"""A wrapped listener: what it is called with, and what happens to the list."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.waits import WAIT_S, eventually, until

from cometmq import ConsumeReport, ConsumeResult, MessageExt
from cometmq.errors import IllegalArgumentError, KeyStoreError
from cometmq.idempotent import (
    KeyState,
    KeyStore,
    MemoryStore,
    SQLiteStore,
    business_key,
    idempotent,
)

SUCCESS, LATER, SUSPEND = (
    ConsumeResult.SUCCESS,
    ConsumeResult.RECONSUME_LATER,
    ConsumeResult.SUSPEND,
)
Says = Callable[[list[MessageExt]], Any]


def message(key: str, topic: str = "t") -> MessageExt:
    made = MessageExt(topic, key.encode())
    if key:
        made.keys = (key,)
    made.msg_id = f"id-{key}"
    return made


def messages(keys: str) -> list[MessageExt]:
    return [message(key) for key in keys]


class Shop:
    """A listener of either kind that notes what it was called with."""

    def __init__(self, kind: str, store: KeyStore) -> None:
        self.kind = kind
        self.store = store
        self.calls: list[str] = []
        self.says: Any = SUCCESS

    def _answer(self, batch: list[MessageExt]) -> Any:
        self.calls.append("".join(one.body.decode() for one in batch))
        said = self.says(batch) if callable(self.says) else self.says
        if isinstance(said, BaseException):
            raise said
        return said

    def wrapped(self, **options: Any) -> Any:
        options = {"scope": "g", **options}

        async def coroutine(batch: list[MessageExt]) -> Any:
            await asyncio.sleep(0)
            return self._answer(batch)

        if self.kind == "coroutine":
            return idempotent(coroutine, self.store, **options)
        return idempotent(self._answer, self.store, **options)

    async def take(self, keys: str, **options: Any) -> Any:
        outcome = self.wrapped(**options)(messages(keys))
        return await outcome if inspect.isawaitable(outcome) else outcome

    def state(self, key: str) -> KeyState:
        begun = self.store.begin(f"g/t/{key}", 60.0)
        if begun.state is KeyState.FREE:
            self.store.abandon(f"g/t/{key}", begun.token)
        return begun.state


@pytest.fixture(params=("function", "coroutine"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=("memory", "sqlite"))
def shop(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Shop:
    if request.param == "memory":
        return Shop(kind, MemoryStore())
    return Shop(kind, SQLiteStore(tmp_path / "done.db"))


@pytest.fixture(autouse=True)
def closing(shop: Shop) -> Any:
    yield
    shop.store.close()


async def test_what_was_done_is_skipped(shop: Shop) -> None:
    assert await shop.take("ab") is SUCCESS
    assert await shop.take("bca") is SUCCESS
    assert await shop.take("ab") is SUCCESS
    assert shop.calls == ["ab", "c"]


async def test_nothing_returned_is_done_unless_it_means_later(shop: Shop) -> None:
    shop.says = None
    assert await shop.take("a") is SUCCESS
    with pytest.warns(DeprecationWarning, match="none_means"):
        assert await shop.take("b", none_means=LATER) is LATER
    assert await shop.take("ab") is SUCCESS
    assert shop.calls == ["a", "b", "b"]


async def test_the_same_event_twice_in_one_list_is_consumed_once(shop: Shop) -> None:
    assert await shop.take("abab") is SUCCESS
    assert shop.calls == ["ab"]


@pytest.mark.parametrize("said", [LATER, SUSPEND, "yes", ConsumeReport(LATER)])
async def test_what_was_refused_comes_again(shop: Shop, said: Any) -> None:
    shop.says = said
    assert await shop.take("ab") == said
    assert shop.state("a") is KeyState.FREE
    shop.says = SUCCESS
    assert await shop.take("ab") is SUCCESS
    assert shop.calls == ["ab", "ab"]


async def test_what_raised_comes_again(shop: Shop) -> None:
    shop.says = ValueError("bad")
    with pytest.raises(ValueError, match="bad"):
        await shop.take("a")
    assert shop.state("a") is KeyState.FREE


async def test_an_acknowledged_part_is_done_and_the_rest_is_free(shop: Shop) -> None:
    await shop.take("x")
    shop.says = ConsumeReport(SUCCESS, ack_index=0, delay_level=3)
    # The places count in the whole list, of which the listener saw but a part.
    assert await shop.take("xaxb") == ConsumeReport(SUCCESS, ack_index=2, delay_level=3)
    assert shop.calls[-1] == "ab"
    assert (shop.state("a"), shop.state("b")) == (KeyState.DONE, KeyState.FREE)
    shop.says = ConsumeReport(SUCCESS, ack_index=-1)
    assert await shop.take("xb") == ConsumeReport(SUCCESS, ack_index=0)
    shop.says = ConsumeReport(SUCCESS, ack_index=7)
    assert await shop.take("bx") == ConsumeReport(SUCCESS, ack_index=1)
    assert shop.state("b") is KeyState.DONE


async def test_what_somebody_else_has_in_progress_comes_later(shop: Shop) -> None:
    other = shop.store.begin("g/t/b", 60.0)
    for expected in (["a"], ["a"]):
        assert await shop.take("abc") is LATER
        assert shop.calls == expected
    assert shop.state("a") is KeyState.DONE
    shop.store.finish("g/t/b", other.token)
    assert await shop.take("abc") is SUCCESS
    assert shop.calls == ["a", "c"]


async def test_a_part_is_not_acknowledged_before_what_is_in_progress(shop: Shop) -> None:
    """An orderly consumer does not know partial lists, and would take the list for done."""
    shop.store.begin("g/t/b", 60.0)
    shop.says = ConsumeReport(SUCCESS, ack_index=0)
    assert await shop.take("ab") is LATER
    assert await shop.take("b") is LATER


async def test_after_a_crash_the_lease_runs_out(shop: Shop) -> None:
    shop.store.begin("g/t/a", 0.05)  # whoever began it is no more
    await until(lambda: shop.take("a"), lambda outcome: outcome is SUCCESS)
    assert shop.calls == ["a"]


async def test_scopes_and_topics_are_apart(shop: Shop) -> None:
    await shop.take("a")
    await shop.take("a", scope="other")
    outcome = shop.wrapped()([message("a", "u")])
    assert (await outcome if inspect.isawaitable(outcome) else outcome) is SUCCESS
    assert shop.calls == ["a", "a", "a"]


async def test_a_key_of_the_users_own(shop: Shop) -> None:
    await shop.take("ab", key=lambda one: one.body.decode().upper())
    assert shop.state("A") is KeyState.DONE
    await shop.take("cc", key=lambda _: None)  # without a key everything is consumed
    assert shop.calls == ["ab", "cc"]
    for bad in ("", "x" * 1025, 7):
        with pytest.raises(IllegalArgumentError, match=r"key of a message of t .* 1 to 1024 char"):
            await shop.take("a", key=lambda _, bad=bad: bad)


def test_a_message_without_keys_is_known_by_its_unique_id(shop: Shop) -> None:
    assert business_key(message("order-1")) == "order-1"
    assert business_key(MessageExt("t", b"x", msg_id="id")) == "id"
    many = message("order-2")
    many.keys = ("first", "second")
    assert business_key(many) == "first"


class Failing(MemoryStore):
    """A store that cannot be reached."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.failing = set(names)

    def begin(self, key: str, lease_s: float) -> Any:
        if "begin" in self.failing and key.endswith("b"):
            raise KeyStoreError("gone")
        return super().begin(key, lease_s)

    def finish(self, key: str, token: str) -> bool:
        if "finish" in self.failing:
            raise KeyStoreError("gone")
        return super().finish(key, token)


async def test_a_store_that_fails_before_has_the_messages_come_again(kind: str) -> None:
    shop = Shop(kind, Failing("begin"))
    with pytest.raises(KeyStoreError):
        await shop.take("ab")
    assert shop.calls == []
    assert shop.state("a") is KeyState.FREE


async def test_a_store_that_fails_afterwards_does_not_undo_the_work(kind: str) -> None:
    shop = Shop(kind, Failing("finish"))
    with structlog.testing.capture_logs() as logs:
        assert await shop.take("a") is SUCCESS
    assert [entry["event"] for entry in logs] == ["a key store failed"]


async def test_a_lease_that_was_too_short_is_told(kind: str) -> None:
    store = MemoryStore()
    shop = Shop(kind, store)

    def outlast(_batch: list[MessageExt]) -> ConsumeResult:
        while store.begin("g/t/a", 60.0).state is not KeyState.FREE:
            pass
        return SUCCESS

    shop.says = outlast
    with structlog.testing.capture_logs() as logs:
        assert await shop.take("a", lease_s=0.01) is SUCCESS
    assert [entry["event"].partition(",")[0] for entry in logs] == [
        "the listener took longer than its lease"
    ]


async def test_a_listener_that_is_cancelled_frees_its_keys(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "done.db") as store:
        begun = asyncio.Event()

        async def stuck(_batch: list[MessageExt]) -> ConsumeResult:
            begun.set()
            await asyncio.Event().wait()
            return SUCCESS

        wrapped = idempotent(stuck, store, scope="g")

        async def listen() -> None:
            await wrapped(messages("a"))

        task = asyncio.create_task(listen())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The thread that frees them goes on after the cancellation.
        await until(lambda: store.begin("g/t/a", 60.0).state is KeyState.FREE)


def test_threads_with_the_same_event_call_the_listener_once(tmp_path: Path) -> None:
    calls: list[str] = []
    gate = threading.Event()

    def listen(batch: list[MessageExt]) -> ConsumeResult:
        gate.wait(2 * WAIT_S)
        calls.append(batch[0].body.decode())
        return SUCCESS

    with SQLiteStore(tmp_path / "done.db") as store:
        wrapped = idempotent(listen, store, scope="g")
        verdicts: list[Any] = []
        threads = [
            threading.Thread(target=lambda: verdicts.append(wrapped(messages("a"))))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(verdicts) == 3)  # all but the one that has it
        gate.set()
        for thread in threads:
            thread.join()
    assert sorted(map(str, verdicts)) == sorted(map(str, [SUCCESS, LATER, LATER, LATER]))
    assert calls == ["a"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scope": ""}, "scope is ''; pass text"),
        ({"scope": None}, "scope is None; pass text"),
        ({"scope": "g", "lease_s": 0}, "lease_s is 0; it must be more than 0"),
        ({"scope": "g", "lease_s": "9"}, "lease_s is '9', a str; give seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(IllegalArgumentError, match=says):
        idempotent(lambda _: SUCCESS, MemoryStore(), **options)
    with pytest.raises(IllegalArgumentError, match="the listener 'print' cannot be called"):
        idempotent("print", MemoryStore(), scope="g")  # type: ignore[call-overload]  # the wrong type is the test
