"""Damage a stream of frames so that most lengths still fit: what lies inside is reached then."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from tests.fuzz.mutation import MAX_INPUT_LENGTH, mutate

_PREFIX: Final = struct.Struct(">iI")
_TEXTS: Final = (
    "", " ", "0", "-1", "1", "2147483647", "-2147483648", "9223372036854775807", "1e3", "true", "null",
    "orders", "billing", "%RETRY%billing", "%DLQ%billing", "SCHEDULE_TOPIC_XXXX", "TBW102", "x" * 300,
    "../../etc/passwd", "a/b", "\0", "é", "\ud800", "SQL92", "TAG", "a > 1 AND b IS NOT NULL", "TAGS\x01a\x02",
    "DELAY\x013\x02", "TIMER_DELAY_SEC\x015\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02", "rmq_sys_wheel_timer",
    "RMQ_SYS_TRANS_HALF_TOPIC", "LETTERS", "broker-0", "10.0.0.2:10911", "0A000002", "LMQ\x01%LMQ%a\x02",
)  # fmt: skip


def split(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return form, header and body of each frame, as far as the lengths say so."""
    frames = []
    while len(data) >= _PREFIX.size:
        total, word = _PREFIX.unpack_from(data)
        form, length = word >> 24, word & 0xFF_FFFF
        if not 4 <= total <= len(data) - 4 or length > total - 4:
            break
        frames.append((form, data[8 : 8 + length], data[8 + length : 4 + total]))
        data = data[4 + total :]
    return frames


def join(frames: Sequence[tuple[int, bytes, bytes]]) -> bytes:
    return b"".join(
        _PREFIX.pack(4 + len(header) + len(body), form << 24 | len(header) & 0xFF_FFFF)
        + header
        + body
        for form, header, body in frames
    )


def mutate_frames(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """`data` after one to three kinds of damage, most of them inside of one frame."""
    if random.random() < 0.15:
        return mutate(random, data, corpus)
    frames = split(data)
    for _ in range(random.choice([1, 1, 2, 3])):
        _damage(random, frames, corpus)
    return join(frames)[:MAX_INPUT_LENGTH]


def _damage(
    random: Random, frames: list[tuple[int, bytes, bytes]], corpus: Sequence[bytes]
) -> None:
    others = split(random.choice(corpus))
    if not frames or random.random() < 0.2:
        at = random.randrange(len(frames) + 1)
        frames[at:at] = others[:4]
        return
    at = random.randrange(len(frames))
    form, header, body = frames[at]
    match random.randrange(8):
        case 0:
            body = mutate(random, body, [one[2] for one in others] or [b""])
        case 1:
            header = mutate(random, header, [one[1] for one in others] or [b""])
        case 2:
            frames.pop(at)
            return
        case 3:
            body = others[0][2] if others else b""
        case 4:
            form = random.choice([0, 1, 2, 255])
        case _:
            header = _other_field(random, header)
    frames[at] = (form, header, body)


def _other_field(random: Random, header: bytes) -> bytes:
    """Change a field of a JSON header: its value, its name, or whether it is there."""
    try:
        command: Any = json.loads(header)
        fields: Any = command["extFields"] if random.random() < 0.8 else command
        name = random.choice(sorted(fields))
    except (ValueError, LookupError, TypeError, RecursionError):
        return header
    if not isinstance(fields, dict):
        return header
    text = random.choice(_TEXTS)
    match random.randrange(6):
        case 0:
            del fields[name]
        case 1:
            fields[name] = random.choice([None, [], {}, True, 5, -1, 2**63, 1.5])
        case 2:
            fields[name] = str(fields[name]) + text
        case 3:
            fields[text] = fields.pop(name)
        case _:
            fields[name] = text
    if random.random() < 0.3:
        command["flag"] = random.choice([0, 1, 2, 3])
    return json.dumps(command, ensure_ascii=random.random() < 0.5).encode(errors="replace")
