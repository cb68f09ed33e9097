"""Forms are decoded in steps, as the standard library decodes them."""

from __future__ import annotations

import asyncio
from random import Random
from urllib.parse import parse_qsl

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from cometmq.console.routes import Fields, read_form


async def read(body: bytes) -> Fields:
    """Return what the console reads of a form that comes in one piece."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    kind = (b"content-type", b"application/x-www-form-urlencoded")
    return await read_form(Request({"type": "http", "headers": [kind]}, receive))


def by_the_library(body: bytes) -> dict[str, str]:
    values: dict[str, list[str]] = {}
    for name, value in parse_qsl(body.decode(), keep_blank_values=True, errors="strict"):
        values.setdefault(name, []).append(value)
    return {name: "\n".join(given) for name, given in values.items()}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"&&a&b=&=c&a=2",
        b"a=1=2&b=%3d%26%2B+%2b",
        "ä=ö&b=%c3%a4中".encode(),
        b"a=%&b=%4&c=%zz&d=%%41&e=%4%41",
        # Escapes around each end of a piece of 2,048 bytes.
        *(b"a=" + b"x" * count + b"%41%%42%4" * 500 for count in (2042, 2043, 2044, 2045, 2046)),
    ],
)
async def test_a_form_is_read_as_ever(body: bytes) -> None:
    assert await read(body) == by_the_library(body)


async def test_any_form_is_read_as_ever() -> None:
    random = Random(16)
    parts = [
        b"%",
        b"4",
        b"1",
        b"%41",
        b"%c3%a4",
        b"&a=",
        b"=",
        b"+",
        b"a",
        "ä".encode(),
        b"x" * 2046,
    ]
    for _ in range(300):
        body = b"a=" + b"".join(random.choices(parts, k=random.randrange(40)))
        try:
            expected = by_the_library(body)
        except UnicodeDecodeError:
            with pytest.raises(HTTPException, match="cannot be read"):
                await read(body)
        else:
            assert await read(body) == expected


@pytest.mark.real_time
async def test_other_requests_are_served_while_a_long_form_is_read() -> None:
    """A MiB of escapes held the loop for 170 ms, for any account that may log in."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    form = await read(b"body=" + b"%41" * 340_000)
    counting.cancel()
    assert form["body"] == "A" * 340_000
    assert turns > 20


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            b"value=" + b"x" * 131_073,
            "the value has 131073 characters, the limit MAX_FIELD is 131072; give",
        ),
        (
            b"x" * 256 + b"=1",
            "the name of a field has 256 characters, the limit MAX_FIELD_NAME is 255; give",
        ),
        (b"a=1&" * 2000, "the form has 2001 fields, the limit MAX_FORM_FIELDS is 2000; choose"),
    ],
)
async def test_what_is_too_long_is_told(body: bytes, says: str) -> None:
    with pytest.raises(HTTPException) as refused:
        await read(body)
    assert refused.value.status_code == 400
    assert says in refused.value.detail
