"""The schemas that a console keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.console.schemas import Schema, Schemas


async def test_schemas_that_two_operators_give_at_once_are_both_kept(tmp_path: Path) -> None:
    schemas = Schemas(tmp_path)
    await schemas.open()
    try:
        await asyncio.gather(
            *(schemas.put(Schema(name, "avro", '"string"', "", "", "")) for name in ("a", "b", "c"))
        )
        assert [each.name for each in schemas.all()] == ["a", "b", "c"]
        again = Schemas(tmp_path)
        await again.open()
        assert again.all() == schemas.all()
        again.close()
    finally:
        schemas.close()
