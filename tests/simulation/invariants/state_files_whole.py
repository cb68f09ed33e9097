"""A state file that is damaged once never keeps a broker from its start: there is a whole one beside it.

Damage comes to a main file only, and only while it has a backup (`damage_state`). The backup is whole
as long as no damaged file takes its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation

NAME: Final = "state files stay whole"
_SAID: Final = "is damaged and no backup is whole"


def judge(evidence: Evidence) -> Iterator[Violation]:
    for fault in evidence.faults:
        error = str(fault.args.get("error", ""))
        if _SAID in error:
            what = f"{fault.args.get('node')} did not start: {error}"
            yield Violation(invariant=NAME, what=what, events=(fault,))
