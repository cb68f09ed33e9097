"""Write docs/reference/access.md: who may send which request, and where Java differs.

    .venv/bin/python scripts/access_reference.py

The differences are those that tests/interop/test_access_on_java.py finds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.access.differences import page  # noqa: E402 - the tests are found by the line above

PAGE: Final = ROOT / "docs" / "reference" / "access.md"

__all__ = ["PAGE", "page"]

if __name__ == "__main__":
    PAGE.write_text(page())
