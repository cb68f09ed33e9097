"""Shows text that others wrote without what moves a terminal's cursor or changes its title."""

from __future__ import annotations


def plain(text: str, keep: str = "") -> str:
    """Return text with everything escaped that is not printable, but for the characters to `keep`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
