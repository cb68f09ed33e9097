"""Print what comes of each kept input, a line each, so that two builds can be compared."""

from __future__ import annotations

import zlib

from tests.fuzz import corpus, log_watch
from tests.fuzz.target import feed
from tests.fuzz.targets import all_targets


def main() -> None:
    log_watch.watch()
    for target in all_targets():
        if target.is_twin:
            for data in [*target.corpus, *corpus.kept(target.name)]:
                reported = repr(feed(target, data)).encode(errors="replace")
                print(target.name, f"{zlib.crc32(data):08x} {zlib.crc32(reported):08x}")  # noqa: T201 - it is a program


if __name__ == "__main__":
    main()
