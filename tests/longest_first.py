"""Begin with the modules that take longest, so that the workers of xdist end at about the same time.

With `--dist loadfile` a worker takes a module as a whole. By default the modules with the most tests come
first, and one that has few, each of a minute, comes last and is waited for: suites whose conftest calls
`begin_with` run with `--no-loadscope-reorder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest


def begin_with(modules: Sequence[str], directory: Path, items: list[pytest.Item]) -> None:
    """Move the tests of these modules of a directory to the front, in this order, the others stay."""
    rank = {directory / f"{name}.py": at for at, name in enumerate(modules)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
