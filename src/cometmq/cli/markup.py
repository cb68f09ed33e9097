"""Puts text that others wrote into what rich prints, which lets a terminal's sequences through."""

from __future__ import annotations

from rich.markup import escape

from cometmq.logs.plain import plain


def as_markup(text: str) -> str:
    """Return the markup by which rich shows text as it is, without what moves a terminal's cursor."""
    return escape(plain(text, keep="\n"))
