"""Show text that others wrote without what moves a terminal's cursor or changes its title."""

from __future__ import annotations


def plain(text: str, keep: str = "") -> str:
    """Return text with everything escaped that is not printable, but for the characters to `keep`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def plain_json(text: str) -> str:
    """Return a JSON text that means the same, with everything that is not printable as its escapes.

    JSON wants this of U+0000 to U+001F alone; others, such as U+009B, begin a terminal's sequences, too.
    """
    if text.replace("\n", "").isprintable():
        return text
    # Between strings JSON has nothing but ASCII, and unprintable of that are line ends alone.
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
