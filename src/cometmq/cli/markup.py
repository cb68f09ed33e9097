"""Make text of others safe for rich, which passes a terminal's control sequences on."""

from __future__ import annotations

from rich.markup import escape

from cometmq.logs.plain import plain


def as_markup(text: str) -> str:
    """Return the markup by which rich shows text as it is, without characters that move a
    terminal's cursor.
    """
    return escape(plain(text, keep="\n"))
