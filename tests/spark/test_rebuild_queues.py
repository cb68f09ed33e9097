"""Queues that a rebuild makes from the rows of a log."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cometmq.pipelines.rebuild.queues import QueueBuilder
from cometmq.pipelines.rebuild.scan import ROW, Rows
from cometmq.pipelines.rebuild.work import Work
from cometmq.store.config import StoreConfig


def test_a_queue_of_a_slave_that_began_anew_has_its_new_messages_only(tmp_path: Path) -> None:
    def rows(first: int, *queue_offsets: int) -> Rows:
        made = np.zeros(len(queue_offsets), ROW)
        made["queue_offset"] = queue_offsets
        made["unit"]["physical_offset"] = first + np.arange(len(queue_offsets)) * 100
        made["unit"]["size"] = 100
        return made

    config = StoreConfig(store_path_root_dir=tmp_path / "store")
    work = Work(config, tmp_path / "target", (0,), False, {}, 0, "mark", is_replica=True)
    work.target.mkdir()
    with work.making() as root:
        builder = QueueBuilder(work, root, ("orders", 0), work.log())
        builder.add(rows(0, 0, 1, 2, 3))
        builder.add(rows(400, 4, 0, 1))
        builder.add(rows(700, 2))
        builder.finish()
    (file,) = (work.target / "consumequeue" / "orders" / "0").iterdir()
    units = np.frombuffer(file.read_bytes()[:100], ">i8,>i4,>i8")
    assert units["f0"].tolist() == [500, 600, 700, 0, 0]
