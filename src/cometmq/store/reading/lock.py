"""Take the lock by which processes keep one another from a store, as Java's brokers take it."""

from __future__ import annotations

import errno
import fcntl
import os

# Any number of readers share it; a broker has it for itself.
SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX


def take_lock(fd: int, kind: int) -> bool:
    """Lock byte 0 of the file `lock`, open as `fd`, until `fd` is closed; return False when another
    process has the lock (Java: FileChannel.tryLock(0, 1, shared)).
    """
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True
