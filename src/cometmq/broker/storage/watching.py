"""Look once a second whether files that the broker uses were removed, replaced or cut by somebody else."""

from __future__ import annotations

import asyncio

from cometmq.broker.parts import Parts
from cometmq.runtime.state_writer import LOOK_PERIOD_S


class FileWatch:
    """Has the store check its files, and missing state files written again. For the loop's thread
    only.
    """

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._state = parts.state
        self._tasks = parts.tasks
        self._executor = parts.workers.worker("look-at-files")

    def start(self) -> None:
        # In virtual time only a test touches the files of a broker, and it calls the store's method
        # itself.
        self._tasks.every(LOOK_PERIOD_S, self._look, "look-at-files", of_outside=True)

    def close(self) -> None:
        """Wait for the look under way, and end the thread."""
        self._executor.shutdown(wait=True)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._store.look_at_files)
        await self._state.look()
