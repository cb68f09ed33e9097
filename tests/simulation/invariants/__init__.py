"""List the invariants, by the names that violations carry. The docstring of each module says its rule,
where the rule comes from, and for each leniency why it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation
from tests.simulation.invariants import (
    acknowledged_not_lost,
    commits_behind,
    copied_first,
    dead_letters,
    delays,
    delivered_at_least_once,
    files_agree,
    filtered_exactly,
    log_says_what_exists,
    never_altered,
    offsets_dense,
    ordered,
    pops_counted,
    pops_done,
    pops_hidden,
    pops_in_order,
    range_reads,
    refused_not_stored,
    resets_followed,
    retries_counted,
    slaves_follow,
    slaves_refuse,
    state_files_whole,
    tables_copied,
    transactions,
)

Judge = Callable[[Evidence], Iterator[Violation]]

INVARIANTS: Final[dict[str, Judge]] = {
    module.NAME: module.judge
    for module in (
        acknowledged_not_lost,
        refused_not_stored,
        never_altered,
        offsets_dense,
        ordered,
        delays,
        transactions,
        retries_counted,
        dead_letters,
        commits_behind,
        filtered_exactly,
        delivered_at_least_once,
        range_reads,
        resets_followed,
        files_agree,
        copied_first,
        slaves_follow,
        slaves_refuse,
        tables_copied,
        state_files_whole,
        log_says_what_exists,
        pops_hidden,
        pops_done,
        pops_counted,
        pops_in_order,
    )
}
