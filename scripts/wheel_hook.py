"""Puts compiled modules into the wheel, where `scripts/compile` has made them of these sources and for
the Python that builds it; see docs/internals/composition.md.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import (  # type: ignore[import-not-found]  # hatchling is there when a wheel is built
    BuildHookInterface,
)


class CompiledModules(BuildHookInterface):  # type: ignore[misc]  # hatchling is there only while building
    """Adds the modules to a wheel, which then suits only this Python on this platform. Modules of
    another Python, or of older sources, stay out: the wheel is then pure and suits any Python.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":  # an editable install finds them in the checkout
            return
        if why_not := _compiled(Path(self.root)).state():
            self.app.display_info(f"A pure wheel, whose modules are interpreted: {why_not}.")
            return
        self.app.display_info("A wheel with compiled modules, for this Python only.")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        native = "src/cometmq/_native"
        build_data["artifacts"] += [f"{native}/*{EXTENSION_SUFFIXES[0]}", f"{native}/sources"]


def _compiled(root: Path) -> ModuleType:
    """Load `cometmq._compiled` without its package, whose dependencies a build does not have."""
    file = root / "src" / "cometmq" / "_compiled.py"
    spec = importlib.util.spec_from_file_location("cometmq_compiled", file)
    assert spec is not None, "it is a source file"
    assert spec.loader is not None, "it is a source file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
