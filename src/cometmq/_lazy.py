"""Import the names of a package when they are first used, by the list in its `__init__.pyi`.

Type checkers read the same list. It contains only `from .module import name`, also over several lines in
brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_IMPORT: Final = re.compile(r"^from (\.\S*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def attach(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the package whose `__init__.py` is `file`."""
    places: dict[str, str] = {}
    for module, many, one in _IMPORT.findall(Path(file).with_suffix(".pyi").read_text("utf-8")):
        places |= dict.fromkeys(re.findall(r"\w+", many or one), module)

    def get(name: str) -> Any:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if place == ".":  # a module of the package, which its import makes an attribute
            return import_module(f".{name}", package)
        found = getattr(import_module(place, package), name)
        setattr(import_module(package), name, found)  # so that this is asked once
        return found

    names = sorted(places)
    return get, lambda: list(names), names
