"""Set the time zone of virtual time, which would otherwise be the machine's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# In POSIX's form, for which no file of the machine is read.
_ZONE: Final = "UTC0"


@contextmanager
def zone_of_simulations() -> Iterator[None]:
    """Have local times be UTC meanwhile, so that one seed gives one history on every machine.

    Unique ids count from the first of the local month, and index files are named by local time. The
    zone is one for the process. It is set for each wait of a test, so this takes microseconds; a
    program that sets another one meanwhile keeps it.
    """
    former = os.environ.get("TZ")
    _set(_ZONE)
    try:
        yield
    finally:
        if os.environ.get("TZ") == _ZONE:
            _set(former)


def _set(zone: str | None) -> None:
    if zone is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = zone
    if hasattr(time, "tzset"):  # Windows has none
        time.tzset()
