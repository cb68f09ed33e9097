"""Puts compiled modules into the wheel: those that `scripts/compile` has made of these sources for the Python
that builds it, or with COMETMQ_COMPILE=1 those that it makes now; see docs/internals/composition.md.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
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

    def dependencies(self) -> list[str]:
        """Return what compiling needs. mypyc looks at the types of what the client requires, too."""
        if not _compiling_is_wanted():
            return []
        metadata = self.metadata.core
        tools = [line for line in metadata.optional_dependencies["dev"] if line.startswith(_TOOLS)]
        return [*metadata.dependencies, *tools]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":  # an editable install finds them in the checkout
            return
        root = Path(self.root)
        compiled = _compiled(root)
        if compiled.state() and _compiling_is_wanted():
            subprocess.run([sys.executable, root / "scripts" / "compile"], check=True)
        if why_not := compiled.state():
            self.app.display_warning(
                f"A pure wheel, whose modules are interpreted: {why_not}. COMETMQ_COMPILE=1 compiles them."
            )
            return
        self.app.display_info("A wheel with compiled modules, for this Python only.")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        native = "src/cometmq/_native"
        build_data["artifacts"] += [f"{native}/*{EXTENSION_SUFFIXES[0]}", f"{native}/sources"]


_TOOLS = ("mypy", "setuptools")


def _compiling_is_wanted() -> bool:
    return os.environ.get("COMETMQ_COMPILE", "0") not in ("", "0")


def _compiled(root: Path) -> ModuleType:
    """Load `cometmq._compiled` without its package, whose dependencies a build does not have."""
    file = root / "src" / "cometmq" / "_compiled.py"
    spec = importlib.util.spec_from_file_location("cometmq_compiled", file)
    assert spec is not None, "it is a source file"
    assert spec.loader is not None, "it is a source file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
