"""Puts the compiled modules, where `scripts/compile` has made some, into the wheel; see decision 13."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import (  # type: ignore[import-not-found]  # hatchling is there when a wheel is built
    BuildHookInterface,
)


class CompiledModules(BuildHookInterface):  # type: ignore[misc]  # hatchling is there only while building
    """Adds the modules to a wheel, which then suits only this Python on this platform; without them
    the wheel suits any Python.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        native = "src/cometmq/_native"
        if version == "standard" and (Path(self.root) / native / "sources").is_file():
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(f"{native}/*")
