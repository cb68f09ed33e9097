"""Idempotent consumption: wrapped listeners in real consumers, by both faces, in order and not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client_faces import Face
from tests.unit.idempotent.stores import redis_server
from tests.waits import eventually

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, MessageQueue
from cometmq.idempotent import (
    KeyState,
    KeyStore,
    MemoryStore,
    RedisStore,
    SQLiteStore,
    idempotent,
)

FIRST = ConsumeFromWhere.FIRST_OFFSET


# With short delay levels a message that is sent back comes soon.
pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "messageDelayLevel": "1s 1s 1s 1s 1s"}
    )
]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(params=("memory", "sqlite", "redis"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyStore]:
    stores: dict[str, Callable[[], Any]] = {
        "memory": MemoryStore,
        "sqlite": lambda: SQLiteStore(tmp_path / "done.db"),
        "redis": lambda: RedisStore(request.getfixturevalue("redis_url")),
    }
    with stores[request.param]() as store:
        yield store


@pytest.fixture(params=(False, True), ids=("concurrent", "orderly"))
def orderly(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Books:
    """Books orders as a listener, and refuses each of `refused` once."""

    def __init__(self, refused: str = "") -> None:
        self.booked: Counter[str] = Counter()
        self.calls = 0
        self._refused = set(refused)
        self._lock = threading.Lock()

    def listen(self, messages: list[MessageExt]) -> ConsumeResult:
        with self._lock:
            self.calls += 1
            keys = [message.keys[0] for message in messages]
            for key in keys:
                if key in self._refused:
                    self._refused.discard(key)
                    raise ValueError(f"cannot book {key} yet")
            self.booked.update(keys)
        return ConsumeResult.SUCCESS


def send(face: Face, topic: str, keys: str) -> None:
    producer = face.producer(f"{topic}-p")
    queue = MessageQueue(topic, "broker-a", 0)
    for key in keys:
        producer.send(Message(topic, b"order", keys=[key]), queue=queue)


def consume(face: Face, topic: str, listener: Any, orderly: bool, **options: Any) -> Any:
    consumer = face.new_consumer(
        topic,
        listener,
        consume_from=FIRST,
        orderly=orderly,
        suspend_current_queue_time_ms=50,
        **options,
    )
    consumer.subscribe(topic)
    return face.started(consumer)


def test_every_event_is_consumed_once(
    face: Face, name: str, store: KeyStore, orderly: bool
) -> None:
    send(face, name, "abacbdda")
    books = Books(refused="b")
    listener = idempotent(face.listener(books.listen), store, scope=name)
    consume(face, name, listener, orderly)
    eventually(lambda: books.booked == dict.fromkeys("abcd", 1))
    # Once this last message is booked, all that was sent before it has been handled.
    send(face, name, "e")
    eventually(lambda: books.booked == dict.fromkeys("abcde", 1))


def test_what_another_process_has_in_progress_waits_for_it(
    face: Face, name: str, tmp_path: Path, orderly: bool
) -> None:
    with SQLiteStore(tmp_path / "done.db") as store, SQLiteStore(tmp_path / "done.db") as other:
        theirs = other.begin(f"{name}/{name}/b", 60.0)
        assert theirs.state is KeyState.FREE
        send(face, name, "ab")
        books = Books()
        listener = idempotent(face.listener(books.listen), store, scope=name)
        consumer = consume(face, name, listener, orderly)
        eventually(lambda: books.booked == {"a": 1})
        other.abandon(f"{name}/{name}/b", theirs.token)  # it failed there
        eventually(lambda: books.booked == {"a": 1, "b": 1})
        consumer.close()


def test_a_group_that_consumes_all_again_does_nothing_again(
    face: Face, name: str, tmp_path: Path, orderly: bool
) -> None:
    send(face, name, "abc")
    with SQLiteStore(tmp_path / "done.db") as store:
        books = Books()
        listener = idempotent(face.listener(books.listen), store, scope="billing")
        first = consume(face, name, listener, orderly, consume_message_batch_max_size=2)
        eventually(lambda: len(books.booked) == 3)
        first.close()
        # A new group begins at the first message, like a group whose offsets were reset.
        again = face.new_consumer(f"{name}-2", listener, consume_from=FIRST, orderly=orderly)
        again.subscribe(name)
        face.started(again)
        send(face, name, "d")
        eventually(lambda: books.booked == dict.fromkeys("abcd", 1))
        again.close()
