"""Show bodies of messages: as text, as JSON, as hexadecimal digits.

Whatever a body holds, what is made of it is bounded, and control characters, which could hide or turn
round what a reader sees, are shown as signs. `show` and `visible` are for other threads than the loop's:
every client that may send can make a body that takes them a tenth of a second. No step keeps other
threads from running for longer than some milliseconds.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

import msgspec

from cometmq.console.views.rendering import Say

KINDS: Final = ("auto", "text", "json", "hex")
CHARSETS: Final = ("utf-8", "gb18030", "big5", "utf-16", "latin-1")
SHOWN_BYTES: Final = 64 * 1024
MOST_SHOWN_BYTES: Final = 1024 * 1024
HEX_BYTES: Final = 4096
_HEX_ROW: Final = 16
# A JSON text that is larger or deeper is shown as it is: lines that are set in would fill the memory.
_JSON_BYTES: Final = 256 * 1024
_JSON_DEPTH: Final = 64
_SNIPPET_BYTES: Final = 200
# A string without its end goes to the end of the text, and nothing is tried twice: looking for the end
# from each quote again would take minutes.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
# Categories of characters that hide, join or separate lines, or turn the direction of the text after
# them.
_HIDING: Final = ("Cc", "Cf", "Zl", "Zp")
# Characters that are replaced in one step.
_PART: Final = 32 * 1024
_CONTROLS: Final = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}


@dataclass(frozen=True, slots=True)
class Shown:
    """Is what a page shows of a body.

    `first` and `shown` are the range of bytes shown; `total` is the body's size. `hint` says why it
    is not shown in the kind that was asked for.
    """

    kind: str
    text: str
    first: int
    shown: int
    total: int
    hint: str = ""

    @property
    def is_cut(self) -> bool:
        return self.shown < self.total


def show(
    body: bytes, kind: str, charset: str, _: Say, *, first: int = 0, more: bool = False
) -> Shown:
    """Return what to show of a body as `kind`, one of KINDS; `more` shows up to 1 MiB of it."""
    most = MOST_SHOWN_BYTES if more else SHOWN_BYTES
    if kind in ("auto", "json"):
        text, hint = _pretty(body, _)
        if text is not None and len(text) <= MOST_SHOWN_BYTES:
            return Shown("json", visible(text), 0, len(body), len(body))
        if kind == "json":
            return Shown(
                "text", _decoded(body[:most], charset), 0, min(most, len(body)), len(body), hint
            )
    if kind == "hex" or (kind == "auto" and not is_text(body)):
        first = min(first, max(len(body) - 1, 0)) // _HEX_ROW * _HEX_ROW
        rows = body[first : first + HEX_BYTES]
        return Shown("hex", _hex(rows, first), first, len(rows), len(body))
    return Shown("text", _decoded(body[:most], charset), 0, min(most, len(body)), len(body))


def snippet(body: bytes) -> str:
    """Return the beginning of a body for one line of a list."""
    head = body[:_SNIPPET_BYTES]
    if not is_text(head):
        return head[:32].hex(" ")
    return visible(" ".join(head.decode(errors="ignore").split()))


def is_text(body: bytes) -> bool:
    """Return whether a body reads as UTF-8 text; its beginning decides."""
    head = body[:SHOWN_BYTES]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        # The cut may have hit a character.
        if error.start < len(head) - 3:
            return False
        text = head[: error.start].decode()
        if len(text) == 0:
            return False
    # Terminals' colours are text, too.
    controls = sum(text.count(chr(code)) for code in _CONTROLS if chr(code) not in "\r\x1b")
    return controls * 100 <= len(text)


def visible(text: str) -> str:
    """Return a text in which each character that hides, or turns what follows, is a sign."""
    text = text.replace("\r\n", "\n")
    hiding = {
        ord(character): f"\\u{ord(character):04x}"
        for character in set(text) - {"\t", "\n"}
        if unicodedata.category(character) in _HIDING
    }
    signs: dict[int, str | int] = {**hiding, **_CONTROLS}
    parts = (text[at : at + _PART] for at in range(0, len(text), _PART))
    return "".join([part.translate(signs) for part in parts])


def _decoded(body: bytes, charset: str) -> str:
    return visible(body.decode(charset if charset in CHARSETS else "utf-8", errors="replace"))


def _pretty(body: bytes, _: Say) -> tuple[str | None, str]:
    """Return a body as JSON with lines set in, or None and why not."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return None, _("It is no JSON: it begins with neither { nor [.")
    if len(body) > _JSON_BYTES:
        return None, _("Its JSON is too large to be laid out, and is shown as it is.")
    depth = deepest = 0
    for sign in re.finditer(rb"[\[\]{}]", _STRING.sub(b"", body)):
        depth += 1 if sign[0] in b"[{" else -1
        deepest = max(deepest, depth)
    if deepest > _JSON_DEPTH:
        return None, _("Its JSON is too deep to be laid out, and is shown as it is.")
    try:
        # Numbers and keys stay as they are written; a parser would round and drop some.
        return msgspec.json.format(body, indent=2).decode(), ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, _("It is no JSON: %(why)s", why=error)


def _hex(rows: bytes, first: int) -> str:
    lines = []
    for at in range(0, len(rows), _HEX_ROW):
        row = rows[at : at + _HEX_ROW]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{first + at:08x}  {row.hex(' '):<47}  {signs}")
    return "\n".join(lines)
