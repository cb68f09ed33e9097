"""Write docs/reference/mqadmin.md: every command of Apache's mqadmin, and what our servers make of it.

    .venv/bin/python scripts/mqadmin_reference.py

The cases that tests/interop/test_mqadmin.py runs say it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.interop.mqadmin.table import page  # noqa: E402 - the tests are found by the line above

PAGE: Final = ROOT / "docs" / "reference" / "mqadmin.md"

__all__ = ["PAGE", "page"]

if __name__ == "__main__":
    PAGE.write_text(page())
