"""Look once a second whether files that the broker uses were removed, replaced or cut by somebody else."""

from __future__ import annotations

from cometmq.broker.parts import Parts
from cometmq.runtime.state_writer import LOOK_PERIOD_S


def watch_files(parts: Parts) -> None:
    """Have the store check its files, and missing state files written again, in one thread: an idle
    broker wakes for little else. For the loop's thread only.
    """
    # In virtual time only a test touches the files of a broker, and it calls the store's method
    # itself.
    parts.tasks.every(
        LOOK_PERIOD_S,
        lambda: parts.state.look(parts.store.look_at_files),
        "look-at-files",
        of_outside=True,
    )
