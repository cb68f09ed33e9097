"""Limits of the process that the system sets too low for a server."""

from __future__ import annotations

import resource

import structlog

log = structlog.get_logger(__name__)

# Connections and mapped files of a busy broker; fewer are worth a word.
_ENOUGH_FILES = 16_384


def raise_open_file_limit() -> int:
    """Raise the soft limit on open files to the hard one, which needs no rights; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < _ENOUGH_FILES:
        log.info("few files may be open at once, see ulimit -Hn", limit=hard)
    return hard
