"""Raise and read limits of the process that the system sets too low for a server."""

from __future__ import annotations

import resource

from cometmq.logs.loggers import get_logger

log = get_logger(__name__)

# A busy broker opens that many connections and mapped files; a lower limit is worth a log line.
ENOUGH_FILES = 16_384


# An eighth of the limit is kept for the store's files, within these bounds.
_FEWEST_FOR_FILES = 64
_MOST_FOR_FILES = 1024


def descriptors_for_connections() -> tuple[int, int]:
    """Return the bound below which the descriptor of a new connection must lie, and its source.

    The bound comes from the limit on open files (`ulimit -n`), the second number returned. The
    system gives out the lowest free descriptor, so a high one says that few are left.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 2**31, limit
    for_files = min(max(limit // 8, _FEWEST_FOR_FILES), _MOST_FOR_FILES, limit // 2)
    return limit - for_files, limit


def raise_open_file_limit() -> int:
    """Raise the soft limit on open files to the hard one, which needs no rights, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_FILES:
        log.info("few files may be open at once, see ulimit -Hn", limit=hard)
    return hard
