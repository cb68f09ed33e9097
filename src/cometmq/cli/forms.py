"""Define the option `-o`, which every command with a result has: how the result is printed."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Form(Enum):
    TABLE = "table"
    JSON = "json"


Output = Annotated[Form, typer.Option("-o", "--output", help="How to print the result.")]
