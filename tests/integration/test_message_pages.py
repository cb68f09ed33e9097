"""Test pages of messages: the order of all queues, cursors, selections, and what they do not read."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Iterator

import pytest
from tests.pace import PACE
from tests.waits import CLOCK, eventually

from cometmq import AdminClient, Message, Producer
from cometmq.admin.messages import pages as message_pages
from cometmq.admin.messages.pages import MessagePage, Order
from cometmq.errors import IllegalArgumentError, RouteNotFoundError
from cometmq.model.names import TIMER_TOPIC
from cometmq.testing import Cluster

pytestmark = [pytest.mark.cluster(brokers=2)]


@pytest.fixture
def admin(namesrv: str) -> Iterator[AdminClient]:
    with AdminClient(namesrv) as made:
        yield made


@pytest.fixture
def producer(namesrv: str) -> Iterator[Producer]:
    with Producer("pages", namesrv=namesrv) as made:
        yield made


def send(producer: Producer, admin: AdminClient, topic: str, count: int) -> list[bytes]:
    """Send numbered messages to all queues in turn, a few in each ms; return their bodies."""
    admin.topics.create(topic)
    eventually(
        lambda: len(admin.topics.route(topic).queue_datas) == 2, passing=(RouteNotFoundError,)
    )
    queues = producer.queues(topic)
    for number in range(count):
        message = Message(topic, b"%d" % number, tags="odd" if number % 2 else "even")
        producer.send(message, queue=queues[number * 7 % len(queues)])
        if number % 3 == 0:
            CLOCK.sleep(0.002)
    return [b"%d" % number for number in range(count)]


def bodies(page: MessagePage) -> list[bytes]:
    return [each.message.body for each in page.messages]


def test_pages_have_every_message_once_in_the_order_of_time(
    admin: AdminClient, producer: Producer, name: str
) -> None:
    sent = send(producer, admin, name, 120)
    for order in Order:
        cursor, pages, times = None, [], []
        while True:
            page = admin.messages.page(name, order=order, cursor=cursor, count=25)
            assert not page.errors
            pages.append(bodies(page))
            times += [each.message.store_timestamp_ms for each in page.messages]
            again = admin.messages.page(name, order=order, cursor=page.begin, count=25)
            assert bodies(again) == pages[-1]
            if (cursor := page.next) is None:
                break
        assert [len(page) for page in pages] == [25, 25, 25, 25, 20]
        assert sorted(int(body) for page in pages for body in page) == sorted(map(int, sent))
        assert times == sorted(times, reverse=order is Order.NEWEST)


def test_a_page_is_cut_by_time_at_both_ends(
    admin: AdminClient, producer: Producer, name: str
) -> None:
    send(producer, admin, name, 60)
    everything = admin.messages.page(name, order=Order.OLDEST, count=60).messages
    begin_ms = everything[20].message.store_timestamp_ms
    end_ms = everything[40].message.store_timestamp_ms
    expected = {
        each.message.body
        for each in everything
        if begin_ms <= each.message.store_timestamp_ms <= end_ms
    }
    for order in Order:
        page = admin.messages.page(name, order=order, begin_ms=begin_ms, end_ms=end_ms, count=60)
        assert set(bodies(page)) == expected
        assert page.next is None
    nothing = admin.messages.page(name, begin_ms=everything[-1].message.store_timestamp_ms + 1)
    assert (nothing.messages, nothing.next) == ((), None)


def test_brokers_that_answer_with_the_nearest_message_lose_none(
    admin: AdminClient, producer: Producer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers before 5.0 look for a time so: any message of that ms, else the nearest one."""
    send(producer, admin, name, 80)
    everything = [m.message for m in admin.messages.page(name, count=80).messages]

    async def nearest(self: object, end: message_pages._End, timestamp_ms: int) -> int:
        times = {
            m.queue_offset: m.store_timestamp_ms
            for m in everything
            if (m.broker_name, m.queue_id) == (end.queue.broker_name, end.queue.queue_id)
        }
        best = min((abs(at - timestamp_ms) for at in times.values()), default=0)
        return random.choice(
            [o for o, at in times.items() if abs(at - timestamp_ms) == best] or [0]
        )

    monkeypatch.setattr(message_pages._Merge, "_at_time", nearest)
    times = sorted({m.store_timestamp_ms for m in everything})
    for begin_ms, end_ms in itertools.product(times[::7], times[::5]):
        expected = {m.body for m in everything if begin_ms <= m.store_timestamp_ms <= end_ms}
        for order in Order:
            page = admin.messages.page(
                name, order=order, begin_ms=begin_ms, end_ms=end_ms, count=80
            )
            assert set(bodies(page)) == expected


def test_what_comes_later_is_read_from_the_newest_place(
    admin: AdminClient, producer: Producer, name: str
) -> None:
    send(producer, admin, name, 10)
    first = admin.messages.page(name, count=3)
    assert admin.messages.page(name, order=Order.OLDEST, cursor=first.newest).messages == ()
    producer.send(Message(name, b"later"))
    later = admin.messages.page(name, order=Order.OLDEST, cursor=first.newest)
    assert bodies(later) == [b"later"]
    assert (
        admin.messages.page(name, order=Order.OLDEST, cursor=later.newest).messages,
        later.next,
    ) == ((), None)


def test_tags_texts_and_queues_select(admin: AdminClient, producer: Producer, name: str) -> None:
    send(producer, admin, name, 40)
    odd = admin.messages.page(name, tags="odd", count=50)
    assert sorted(int(body) for body in bodies(odd)) == list(range(1, 40, 2))
    sevens = admin.messages.page(name, matches=lambda message: b"7" in message.body)
    assert sorted(bodies(sevens)) == [b"17", b"27", b"37", b"7"]
    one = producer.queues(name)[0]
    alone = admin.messages.page(name, queue=(one.broker_name, one.queue_id))
    assert {(m.message.broker_name, m.message.queue_id) for m in alone.messages} == {
        (one.broker_name, one.queue_id)
    }
    cut = admin.messages.page(name, count=1, body_bytes=0).messages[0]
    assert (cut.message.body, cut.body_bytes) == (b"", 2)


@pytest.mark.parametrize("bound", ["_MAX_LOOKED_AT", "_MAX_LOOKED_BYTES"])
def test_a_page_reads_no_more_than_its_bound_and_goes_on_from_there(
    admin: AdminClient,
    producer: Producer,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
) -> None:
    send(producer, admin, name, 90)
    monkeypatch.setattr(message_pages, bound, 10)
    found: list[bytes] = []
    cursor, pages = None, 0
    while True:
        page = admin.messages.page(
            name, matches=lambda message: message.body == b"1", cursor=cursor, count=5
        )
        pages += 1
        found += bodies(page)
        if (cursor := page.next) is None:
            break
        assert page.reached_ms is not None
    assert (found, pages > 2) == ([b"1"], True)


def test_a_broker_that_is_away_hides_only_its_own_messages(name: str) -> None:
    with Cluster(brokers=2) as cluster, AdminClient(cluster.namesrv) as admin:
        with Producer("pages", namesrv=cluster.namesrv) as producer:
            send(producer, admin, name, 20)
            whole = admin.messages.page(name)
        cluster.call("stop_broker", 1)
        page = admin.messages.page(name)
        # Until the name server forgets the broker, it is asked in vain.
        assert set(page.errors) <= {"broker-b"}
        assert 0 < len(page.messages) < len(whole.messages)


def test_what_cannot_be_a_page_is_refused(
    admin: AdminClient, producer: Producer, name: str
) -> None:
    send(producer, admin, name, 1)
    for cursor in ("x", "a=1.y", "=;=", "a" * 20_000):
        with pytest.raises(IllegalArgumentError, match="cursor"):
            admin.messages.page(name, cursor=cursor)
    with pytest.raises(IllegalArgumentError, match="count is 0"):
        admin.messages.page(name, count=0)
    with pytest.raises(RouteNotFoundError, match="has no queue 999"):
        admin.messages.page(name, queue=(producer.queues(name)[0].broker_name, 999))
    with pytest.raises(RouteNotFoundError):
        admin.messages.page(f"{name}-none")


def test_a_delayed_message_is_recalled(admin: AdminClient, producer: Producer, name: str) -> None:
    send(producer, admin, name, 1)
    delay_ms = int(5000 * PACE)
    sent = producer.send(Message(name, b"taken back", delay_ms=delay_ms))
    producer.send(Message(name, b"comes", delay_ms=delay_ms))
    waiting = eventually(
        lambda: [
            each.message
            for each in admin.messages.page(TIMER_TOPIC).messages
            if each.message.unique_id == sent.msg_id
        ]
    )
    assert admin.messages.recall(waiting[0]) == sent.msg_id
    eventually(lambda: b"comes" in bodies(admin.messages.page(name)))
    assert b"taken back" not in bodies(admin.messages.page(name))
    stored = admin.messages.page(name).messages[0].message
    with pytest.raises(IllegalArgumentError, match="does not wait for its time"):
        admin.messages.recall(stored)


def test_a_search_keeps_no_bodies_but_those_that_it_reads_now(
    admin: AdminClient, producer: Producer, name: str
) -> None:
    """One reader with sixty searches through large messages filled 2.6 GB of a console's memory."""
    admin.topics.create(name, read_queues=1, write_queues=1)
    queue = eventually(lambda: producer.queues(name))[0]
    for _ in range(48):
        producer.send(Message(name, random.randbytes(1 << 20)), queue=queue)
    for order in Order:
        tracemalloc.start()
        page = admin.messages.page(name, order=order, matches=lambda _: False, body_bytes=256)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert page.looked_at == 48
        assert peak < 16 << 20
