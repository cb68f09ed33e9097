"""Make the workers that wait for the disk, so that the loop does not.

Servers take `Workers` as a parameter, so a simulation can pass workers that do their work in the
loop's thread, when it says so.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Final, Protocol


class Workers(Protocol):
    def worker(self, name: str) -> Executor:
        """Make a worker that does one piece of work at a time, in the order of their submission.

        The result of a future that it returns may be waited for by blocking. Its maker calls
        `shutdown(wait=True)`, which waits until all that was submitted is done.
        """


class Threads:
    """Makes each worker a thread, which begins with the first piece of work."""

    def worker(self, name: str) -> Executor:
        from concurrent.futures import ThreadPoolExecutor  # imports what no short command needs

        return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


THREADS: Final = Threads()
