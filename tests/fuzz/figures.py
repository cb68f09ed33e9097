"""Add up what runs of `make fuzz` have done, and write it into the documentation."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

BEGIN: Final = "<!-- written by python -m tests.fuzz --record -->"
END: Final = "<!-- end of what python -m tests.fuzz writes -->"


def add(path: Path, done: dict[str, tuple[int, float, int]]) -> None:
    """Add inputs and seconds of each target to the sums of former runs; keep the best coverage."""
    sums = _read(path)
    for name, (inputs, seconds, coverage) in done.items():
        before = sums.get(name, (0, 0.0, 0))
        sums[name] = (before[0] + inputs, before[1] + seconds, max(before[2], coverage))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sums, indent=1))


def record(path: Path, page: Path) -> None:
    """Write the sums between the marks of a page."""
    sums = _read(path)
    inputs, seconds = (sum(row[place] for row in sums.values()) for place in (0, 1))
    lines = [
        BEGIN,
        (
            f"Until {datetime.now(UTC):%d %B %Y}: {inputs:,} inputs, in turns that took "
            f"{seconds / 60:,.0f} minutes together."
        ),
        "",
        "| target | inputs | seconds | places reached |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {name} | {row[0]:,} | {row[1]:,.0f} | {row[2]:,} |" for name, row in sums.items()),
        END,
    ]
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + "\n".join(lines) + after)


def _read(path: Path) -> dict[str, tuple[int, float, int]]:
    if not path.is_file():
        return {}
    return {name: tuple(row) for name, row in json.loads(path.read_text()).items()}
