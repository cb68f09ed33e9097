"""The file of offsets is made beside the loop, of offsets that go on changing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from cometmq.broker.config import BrokerConfig
from cometmq.broker.tables import BrokerTables
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.state_files.state_writer import StateWriter

GROUPS = 3_000


class Captured:
    """Takes the place of a state writer, and keeps what makes the text of a file."""

    def __init__(self) -> None:
        self.capture: Callable[[], Iterator[str]] = lambda: iter(())

    def soon(self, file: object, capture: Callable[[], Iterator[str]], *_: object) -> None:
        self.capture = capture


def test_offsets_are_copied_by_the_thread_that_writes_them(tmp_path: Path) -> None:
    """The loop copied those of 25,000 groups in one piece, which held it for 12 ms."""
    state = Captured()
    config = BrokerConfig(broker_name="b", broker_cluster_name="C", broker_ip1="127.0.0.1")
    tables = BrokerTables(config, SYSTEM_CLOCK, cast("StateWriter", state), tmp_path)
    offsets = tables.offsets
    for number in range(GROUPS):
        offsets.keep(f"g-{number}", "t", 0, 1)
    tables.save_offsets()
    pieces = state.capture()
    # What is captured on the loop is the table of groups; their offsets change until they are copied.
    offsets.keep("g-0", "t", 0, 2)
    first = next(pieces)
    offsets.keep("g-0", "t", 0, 3)
    offsets.keep(f"g-{GROUPS - 1}", "t", 7, 3)
    offsets.remove_group("g-1")
    offsets.keep("new", "t", 0, 1)
    text = first + "".join(pieces)
    table: dict[str, dict[str, Any]] = json.loads(text)["offsetTable"]
    assert len(table) == GROUPS
    assert table["t@g-0"] == {"0": 2}
    assert table["t@g-1"] == {"0": 1}
    assert table[f"t@g-{GROUPS - 1}"] == {"0": 1, "7": 3}
    assert "t@new" not in table
    # All that came meanwhile is written the next time.
    assert offsets.changed
    tables.save_offsets()
    again = json.loads("".join(state.capture()))["offsetTable"]
    assert (again["t@g-0"], "t@g-1" in again, again["t@new"]) == ({"0": 3}, False, {"0": 1})
    tables.close()
