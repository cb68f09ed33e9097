"""A quick look at every record of a stretch of the commit log: its flags, and what it came from."""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.following import Glance, LogFollower


def glances(commit_log: CommitLog, start: int) -> Iterator[Glance]:
    """The records from `start` on, which must be the offset of one or of a file."""
    return iter(LogFollower(commit_log, start))
