"""Charge customers. This ledger stands for a payment provider, which does not notice repeated charges."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Final, Self

from .orders import Order

LIMIT_CENTS: Final = 1_000_000


class ChargeRefusedError(Exception):
    """The provider refuses a charge, and would refuse it again."""


class Ledger:
    """Keeps charges in an SQLite file, with a row for each charge, also if an order is charged twice."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()  # the consumer's threads share the connection
        self._rows = sqlite3.connect(path, check_same_thread=False)
        with self._rows:
            self._rows.execute(
                "CREATE TABLE IF NOT EXISTS charges ("
                "order_id TEXT NOT NULL, customer TEXT NOT NULL, cents INTEGER NOT NULL)"
            )

    def charge(self, order: Order) -> None:
        """Charge for an order. Raises ChargeRefusedError if it costs more than the limit."""
        if order.cents > LIMIT_CENTS:
            raise ChargeRefusedError(
                f"order {order.id} costs {order.cents} cents; the limit of a charge is {LIMIT_CENTS} cents"
            )
        with self._lock, self._rows:
            self._rows.execute(
                "INSERT INTO charges VALUES (?, ?, ?)", (order.id, order.customer, order.cents)
            )

    def charged(self) -> list[str]:
        """Return the ids of the orders, one for each charge."""
        with self._lock:
            rows = self._rows.execute("SELECT order_id FROM charges ORDER BY rowid").fetchall()
        return [order_id for (order_id,) in rows]

    def close(self) -> None:
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
