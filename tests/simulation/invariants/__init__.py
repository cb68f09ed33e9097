"""List the invariants, by the names that violations carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation

Judge = Callable[[Evidence], Iterator[Violation]]

INVARIANTS: Final[dict[str, Judge]] = {}
