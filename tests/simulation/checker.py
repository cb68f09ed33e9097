"""Judge one run by its history and by the files of its stores.

    violations = check(history, {"broker-a": image})

The checker shares no code with broker, client or store. Each invariant is a module of `invariants/`,
whose docstring says its rule and where the rule comes from. All run on the same `Evidence`, which reads
history and files once.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.evidence import Evidence, StoreImage, Violation
from tests.simulation.history import History
from tests.simulation.invariants import INVARIANTS


def check(history: History, stores: Mapping[str, StoreImage]) -> list[Violation]:
    """Return what breaks an invariant, in the order of the invariants; nothing if all hold.

    `stores` has for each broker, by its name, the files as they were at the end of the run.
    """
    evidence = Evidence(history, stores)
    return [violation for judge in INVARIANTS.values() for violation in judge(evidence)]
