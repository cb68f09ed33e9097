"""Run a cluster that a small shop uses, and its console: for screenshots, and to look around.

    python -m tests.console.demo_cluster [--port 8080]

Two masters with a slave each. Orders, payments and shipments go on all the time; most groups keep up.
Then there is what an operator looks for: `fraud-check` is slower than its topic, `reporting` has no
member, `mailer` has dead letters, `loyalty` has members that disagree about the subscription,
`returns-desk` retries, reminders wait for their time, and of the transactions one waits and two were
given up.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import fastavro
from tests.console.actors import QUICK_CHECKS, Actors, Bank
from tests.console.running import Served, running_console
from tests.waits import CLOCK

from cometmq import (
    AdminClient,
    CometMQError,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    Producer,
)
from cometmq.testing import Cluster

# Queues on each broker.
TOPICS: Final = {
    "orders": 4,
    "payments": 2,
    "shipments": 4,
    "notifications": 2,
    "payment-reminders": 2,
    "returns": 2,
    "stock-levels": 2,
    "customer-events": 4,
}
_SKUS: Final = ("kettle", "tea-green-100g", "teapot-glass", "cup-set-4", "strainer", "honey-500g")
_CITIES: Final = ("Berlin", "Lyon", "Porto", "杭州", "Chennai", "Cork", "Kraków")
# What a scanner reads, in Avro.
_READING: Final = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "shelf", "type": "int"},
        {"name": "count", "type": "long"},
    ],
}
_PER_TICK: Final = 5
_TICK_S: Final = 0.25
# Trade rises and falls in waves. They begin in the middle and go up, whatever a sale takes.
WAVE_S: Final = 120.0


class Demo(NamedTuple):
    """A shop's cluster and the console on it. The ids are those of messages worth a look."""

    cluster: Cluster
    served: Served
    ids: dict[str, str]


@contextmanager
def demo(
    root: Path, *, traffic: bool = True, port: int = 0, quiet_s: float = 0, **options: Any
) -> Iterator[Demo]:
    """Run the shop. Everything is there when this yields; with `traffic` more comes all the time.

    For `quiet_s` the console does not look yet: its charts would begin with all of the past at once.
    """
    properties = {
        **QUICK_CHECKS,
        "enablePropertyFilter": "true",
        "traceTopicEnable": "true",
        "autoCreateTopicEnable": "false",
        # Small files, so that a page of the broker has several to show.
        "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
    }
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(brokers=2, slaves=1, properties=properties))
        shop = Shop(cluster.namesrv, root / "offsets")
        stack.enter_context(shop.actors)
        shop.open()
        if traffic:
            stack.enter_context(shop.traffic())
        schema = {"name": "reading", "kind": "avro", "topic": "stock-levels"}
        (root / "console").mkdir(parents=True, exist_ok=True)
        (root / "console" / "schemas.json").write_text(
            json.dumps([{**schema, "text": json.dumps(_READING, indent=2)}])
        )
        shop.rest(quiet_s)
        served = stack.enter_context(
            running_console(
                cluster.namesrv,
                root / "console",
                port=port,
                **{"reports": reported(root / "reports"), **options},
            )
        )
        yield Demo(cluster, served, shop.ids)


def reported(directory: Path) -> Path:
    """Write reports as the shop's pipelines do, and return their directory."""
    directory.mkdir(parents=True)
    for name, ended, holds, summary in (
        ("archive", "02:03:20", True, "412,880 messages of 8 topics are archived and proved"),
        ("audit", "02:31:07", False, "3 messages of payments were consumed by no group"),
    ):
        report = {
            "pipeline": name,
            "started": "2026-11-23T02:00:00Z",
            "ended": f"2026-11-23T{ended}Z",
            "holds": holds,
            "summary": summary,
        }
        (directory / f"{name}.json").write_text(json.dumps(report))
        (directory / f"{name}.html").write_text(f"<!doctype html><h1>{name}</h1><p>{summary}</p>")
    return directory


class Shop:
    """Drives the clients of the shop."""

    def __init__(self, namesrv: str, offsets: Path) -> None:
        self.namesrv = namesrv
        self.actors = Actors(namesrv)
        self.ids: dict[str, str] = {}
        self._offsets = offsets
        self._ended = threading.Event()
        self._draw = random.Random(17)
        self._order = 41_000
        self._web: Producer
        self._stock: Producer
        self._pays: Any

    def open(self) -> None:
        """Make the topics, let the past happen, and start the members of all groups."""
        with AdminClient(self.namesrv) as admin:
            for topic, queues in TOPICS.items():
                admin.topics.create(topic, read_queues=queues, write_queues=queues)
        self._web = self.actors.producer("web-shop", enable_trace=True)
        self._stock = self.actors.producer("warehouse-scanner")
        bank = Bank()
        bank.verdict = LocalTransactionState.COMMIT
        self._pays = self.actors.bank("payment-gateway", bank, topics=["payments"])
        self._past()
        self._members()
        self._trouble()

    def _past(self) -> None:
        for _ in range(300):
            self.sell()
        # The two that were there once: one is gone, of the other nobody heard since.
        for group, topic in (("reporting", "orders"), ("stock-audit", "stock-levels")):
            with Actors(self.namesrv) as before:
                before.member(group, topic).wait_for(50)
        for _ in range(400):
            self.sell()

    def _members(self) -> None:
        actors = self.actors
        for number in (1, 2):
            actors.member("billing", "orders", instance_name=f"billing-{number}", enable_trace=True)
        actors.member("warehouse", "shipments", orderly=True, instance_name="warehouse-1")
        actors.member("dispatch", "payments", "captured", instance_name="dispatch-1")
        for number in (1, 2):
            actors.member(
                "search-index",
                "customer-events",
                message_model=MessageModel.BROADCASTING,
                local_offset_dir=str(self._offsets / str(number)),
                instance_name=f"search-{number}",
            )
        for number, tags in ((1, "captured"), (2, "captured || refunded")):
            actors.member("loyalty", "payments", tags, instance_name=f"loyalty-{number}")
        actors.consumer(
            "fraud-check", "orders", self._slowly,
            concurrency=2, instance_name="fraud-check-1", enable_trace=True,
        )  # fmt: skip
        actors.consumer("returns-desk", "returns", _often_later, instance_name="returns-desk-1")
        actors.consumer(
            "mailer", "notifications", _refuse_some, max_reconsume_times=0, instance_name="mailer-1"
        )

    def _trouble(self) -> None:
        for number in range(12):
            self._notify(f"K-{2000 + number}", "not an address")
        for level in (5, 9, 14, 16, 17, 18):
            self._remind(delay_level=level)
        for minutes in (3, 20, 45, 90, 600, 1440):
            self._remind(delay_ms=minutes * 60_000)
        for number in range(2):
            body = _json({"order": f"O-{40990 + number}", "amount": 129.5, "state": "authorised"})
            half = self.actors.forget(f"payment-terminal-{number}", "payments", body, Bank())
            self.ids[f"given up {number}"] = half.msg_id
        body = _json({"order": "O-40993", "amount": 18.0, "state": "authorised"})
        self.ids["waits"] = self.actors.leave_waiting("payment-kiosk", "payments", body).msg_id
        self.ids["traced"] = self.actors.trace("gift-cards", "orders", _json({"gift": 25})).msg_id

    def rest(self, seconds: float) -> None:
        """Wait, at most until the shop closes."""
        self._ended.wait(seconds)

    def sell(self) -> str:
        """Send all messages of one order; return the id of the order's own."""
        draw = self._draw
        self._order += 1
        order, customer = f"O-{self._order}", f"K-{draw.randrange(1000, 1400)}"
        lines = [
            {"sku": draw.choice(_SKUS), "count": draw.randint(1, 4)}
            for _ in range(draw.randint(1, 3))
        ]
        city = draw.choice(_CITIES)
        amount = round(draw.uniform(8, 240), 2)
        placed = _json({"order": order, "customer": customer, "city": city, "lines": lines})
        sent = self._web.send(
            Message(
                "orders", placed, tags="placed", keys=[order, customer], properties={"city": city}
            )
        )
        self._web.send(Message("customer-events", _json({"customer": customer, "did": "buy"})))
        if draw.random() < 0.8:
            tags = "refunded" if draw.random() < 0.1 else "captured"
            paid = _json({"order": order, "amount": amount, "currency": "EUR", "state": tags})
            self._pays.send_in_transaction(Message("payments", paid, tags=tags, keys=[order]))
        if draw.random() < 0.6:
            ships = _json(
                {"order": order, "to": city, "carrier": draw.choice(("DHL", "SF", "UPS"))}
            )
            self._stock.send(Message("shipments", ships, tags="packed", keys=[order]), key=order)
        if draw.random() < 0.05:
            self._stock.send(Message("returns", _json({"order": order}), keys=[order]))
        reading = io.BytesIO()
        level = {"sku": draw.choice(_SKUS), "shelf": draw.randrange(90), "count": self._order}
        fastavro.schemaless_writer(reading, _READING, level)
        self._stock.send(Message("stock-levels", reading.getvalue()))
        self.ids["order"] = sent.msg_id
        return sent.msg_id

    def _notify(self, customer: str, address: str) -> None:
        body = _json({"customer": customer, "address": address, "template": "order-confirmed"})
        self._web.send(Message("notifications", body, tags="mail", keys=[customer]))

    def _remind(self, **delay: Any) -> None:
        self._order += 1
        body = _json({"order": f"O-{self._order}", "reminder": "payment is open"})
        self._web.send(
            Message("payment-reminders", body, tags="reminder", keys=[f"O-{self._order}"], **delay)
        )

    def _slowly(self, _messages: list[MessageExt]) -> ConsumeResult:
        self._ended.wait(0.3)
        return ConsumeResult.SUCCESS

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Sell more, in waves, until the end."""
        seller = threading.Thread(target=self._sell_on, name="shop")
        seller.start()
        try:
            yield
        finally:
            self._ended.set()
            seller.join()

    def _sell_on(self) -> None:
        tick, began_s = 0, CLOCK.monotonic()
        while not self._ended.wait(_TICK_S):
            tick += 1
            wave = 1 + 0.6 * math.sin((CLOCK.monotonic() - began_s) / WAVE_S * math.tau)
            try:
                for _ in range(round(wave * _PER_TICK * self._draw.uniform(0.6, 1.2))):
                    self.sell()
                if tick % 8 == 0:
                    self._notify(f"K-{self._draw.randrange(1000, 1400)}", "mai@example.org")
            except CometMQError as error:
                # Somebody takes a broker away to look at the console without it.
                print(f"a sale failed: {error}", file=sys.stderr)  # noqa: T201 - a script


def _often_later(messages: list[MessageExt]) -> ConsumeResult:
    fails = any(message.reconsume_times < 2 for message in messages)
    return ConsumeResult.RECONSUME_LATER if fails else ConsumeResult.SUCCESS


def _refuse_some(messages: list[MessageExt]) -> ConsumeResult:
    fails = any(b"not an address" in message.body for message in messages)
    return ConsumeResult.RECONSUME_LATER if fails else ConsumeResult.SUCCESS


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with tempfile.TemporaryDirectory() as root, demo(Path(root), port=port) as shown:
        print(f"console {shown.served.url}, name server {shown.cluster.namesrv}")  # noqa: T201 - a script
        for name, password in shown.served.passwords.items():
            print(f"  {name:<9} {password}")  # noqa: T201 - a script
        print(*(f"  {what}: {msg_id}" for what, msg_id in shown.ids.items()), sep="\n", flush=True)  # noqa: T201 - a script
        ended.wait()


if __name__ == "__main__":
    main()
