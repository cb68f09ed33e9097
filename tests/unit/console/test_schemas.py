"""Keep schemas, and read bodies by them in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.waits import PROCESS_WAIT_S

from cometmq.console.schemas import store
from cometmq.console.schemas.store import Schema, Schemas

AVRO = json.dumps({"type": "record", "name": "One", "fields": [{"name": "n", "type": "long"}]})


async def test_two_schemas_that_are_given_at_once_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checked(self: Schemas, order: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        del self, order, body
        return {}

    monkeypatch.setattr(Schemas, "_run", checked)
    kept = Schemas(tmp_path)
    names = [f"schema-{number}" for number in range(5)]
    await asyncio.gather(*(kept.put(Schema(name, "avro", AVRO)) for name in names))
    assert [each.name for each in kept.all()] == names
    again = Schemas(tmp_path)
    await again.open()
    assert [each.name for each in again.all()] == names


@pytest.mark.real_time
async def test_what_decodes_bodies_gets_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_SECRET_KEY", "of the cluster")
    given: dict[str, str] = {}
    run = subprocess.run

    def spied(*args: Any, **options: Any) -> Any:
        given.update(options["env"])
        return run(*args, **options)

    monkeypatch.setattr(subprocess, "run", spied)
    # On a busy machine the program that decodes takes long to start and to import.
    monkeypatch.setattr(store, "_DEADLINE_S", PROCESS_WAIT_S)
    kept = Schemas(tmp_path)
    text, _ = await kept.decode(Schema("one", "avro", AVRO), b"\x0e")
    assert json.loads(text) == {"n": 7}
    assert "COMETMQ_SECRET_KEY" not in given
    kept.close()
