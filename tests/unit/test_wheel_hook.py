"""A wheel has compiled modules only if they are of the Python that builds it, and of these sources."""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
OTHER = ".cpython-399-x86_64-linux-gnu.so"


class Checkout:
    """A checkout as the hook sees it: the sources' checksums are always those that were noted."""

    def __init__(self, root: Path, hook: type[Any]) -> None:
        package = root / "src" / "cometmq"
        self.native = package / "_native"
        self.native.mkdir(parents=True)
        (root / "scripts").mkdir()
        (root / "scripts" / "compile").write_text("raise SystemExit(3)")
        text = (ROOT / "src/cometmq/_compiled.py").read_text()
        (package / "_compiled.py").write_text(f"{text}\ndef checksums(): return 'noted'\n")
        self.said: list[str] = []
        self.hook = hook()
        self.hook.root = str(root)
        self.hook.app = SimpleNamespace(
            display_info=self.said.append, display_warning=self.said.append
        )
        self.hook.metadata = SimpleNamespace(
            core=SimpleNamespace(
                dependencies=["msgspec>=1"], optional_dependencies={"dev": ["mypy>=1", "pytest"]}
            )
        )

    def compile(self, suffix: str, sources: str = "noted") -> None:
        (self.native / f"cometmq__mypyc{suffix}").touch()
        (self.native / "sources").write_text(sources)

    def build(self) -> dict[str, Any]:
        data: dict[str, Any] = {"artifacts": []}
        self.hook.initialize("standard", data)
        return data


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.delenv("COMETMQ_PURE", raising=False)
    monkeypatch.delenv("COMETMQ_COMPILE", raising=False)
    name = "hatchling.builders.hooks.plugin.interface"
    parts = name.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
    interface: Any = ModuleType(name)
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, name, interface)
    hook = runpy.run_path(str(ROOT / "scripts/wheel_hook.py"))["CompiledModules"]
    return Checkout(tmp_path, hook)


def test_modules_of_this_python_are_in_a_wheel_for_it(checkout: Checkout) -> None:
    checkout.compile(EXTENSION_SUFFIXES[0])
    data = checkout.build()
    assert (data["pure_python"], data["infer_tag"]) == (False, True)
    assert f"src/cometmq/_native/*{EXTENSION_SUFFIXES[0]}" in data["artifacts"]


def test_a_wheel_has_no_modules_of_another_python(checkout: Checkout) -> None:
    """`pip install .` under 3.12 made a wheel `cp312` of the modules that 3.11 had compiled."""
    checkout.compile(OTHER)
    assert checkout.build() == {"artifacts": []}
    assert "another Python" in checkout.said[0]


def test_modules_of_both_pythons_are_told_apart_by_their_names(checkout: Checkout) -> None:
    checkout.compile(OTHER)
    checkout.compile(EXTENSION_SUFFIXES[0])
    assert not any(Path(f"x{OTHER}").match(Path(a).name) for a in checkout.build()["artifacts"])


def test_a_wheel_has_no_modules_of_older_sources(checkout: Checkout) -> None:
    checkout.compile(EXTENSION_SUFFIXES[0], sources="older")
    assert checkout.build() == {"artifacts": []}
    assert "the sources have changed" in checkout.said[0]


def test_a_clean_clone_says_that_it_is_not_compiled(checkout: Checkout) -> None:
    assert checkout.build() == {"artifacts": []}
    assert "not compiled" in checkout.said[0]
    assert "COMETMQ_COMPILE=1" in checkout.said[0]
    assert checkout.hook.dependencies() == []


def test_compiling_that_is_wanted_and_fails_ends_the_build(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_COMPILE", "1")
    assert checkout.hook.dependencies() == ["msgspec>=1", "mypy>=1"]
    with pytest.raises(Exception, match="exit status 3"):
        checkout.build()
