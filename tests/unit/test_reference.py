"""The pages that are generated from the code are up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
REMEDY = "run .venv-spark/bin/python scripts/config_reference.py"


def generator() -> ModuleType:
    path = ROOT / "scripts" / "config_reference.py"
    spec = importlib.util.spec_from_file_location("config_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_configuration_is_up_to_date() -> None:
    """The test also fails for a key without a meaning in meanings.toml, or a meaning without a
    key.
    """
    made = generator()
    assert made.PAGE.read_text() == made.page(), REMEDY
