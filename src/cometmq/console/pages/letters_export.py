"""Give dead letters as a file of JSON lines, within bounds."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.limits import LimitMetError
from cometmq.console.pages.exports import Export, ended_by_session, last_line
from cometmq.console.pages.letters import Choice, choice_of, stored
from cometmq.console.refusals import Refused
from cometmq.console.routes import Routes, account_of, console_of
from cometmq.model import properties as p
from cometmq.model.message import MessageExt

routes: Final = Routes()
# For each export a broker reads its files, and every letter takes the console some time.
MAX_LETTER_EXPORTS: Final = 4
MAX_EXPORTED: Final = 100_000
# A search by key finds few letters among many that it looks at.
MAX_LOOKED_AT: Final = 1_000_000
MAX_EXPORTED_BYTES: Final = 4 * 1024 * 1024 * 1024
# A browser that reads a little now and then would occupy one of MAX_LETTER_EXPORTS.
MAX_EXPORT_S: Final = 30 * 60.0


@routes.page("/letters/export")
async def export(request: Request) -> Response:
    """Give the letters that the filter finds as a file of JSON lines, with their exact bodies.

    A file that a limit has ended says so in its last line.
    """
    console, query = console_of(request), request.query_params
    choice = choice_of(request, query.get("group", ""), query)
    places, account = console.exports, account_of(request)
    under_way = Refused.EXPORTS(count=places.count)
    places.check(account, under_way, "MAX_LETTER_EXPORTS", MAX_LETTER_EXPORTS)
    letters = stored(console, choice)
    places.take(account)
    try:
        # An error before the first letter is shown by a page, a later one breaks the download off.
        first = await anext(letters, None)
    except BaseException:
        places.give_back(account)
        raise

    end_s = console.clock.monotonic() + MAX_EXPORT_S
    lines = _lines(
        choice,
        first,
        letters,
        lambda: console.clock.monotonic() >= end_s,
        lambda met: last_line(request, met),
        lambda: ended_by_session(request),
    )
    name = f"dead-letters-{choice.group}.jsonl".replace("%", "_").replace("|", "_")
    return Export(
        lines,
        places,
        account,
        "application/octet-stream",
        {"content-disposition": f'attachment; filename="{name}"'},
    )


async def _lines(
    choice: Choice,
    first: MessageExt | None,
    rest: AsyncIterator[MessageExt],
    is_late: Callable[[], bool],
    last_line: Callable[[LimitMetError], bytes],
    ended_by: Callable[[], bytes],
) -> AsyncGenerator[bytes]:
    looked_at = size = count = 0
    async for letter in _joined(first, rest):
        if ended := ended_by():
            yield ended
            return
        looked_at, size = looked_at + 1, size + len(letter.body)
        if met := _limit(looked_at, size, count, is_late=is_late()):
            yield last_line(
                LimitMetError(
                    429,
                    Refused.LETTERS_EXPORTED(count=count, looked=looked_at - 1),
                    *met,
                    Refused.TAKE_OTHERS_BY_TIME(),
                )
            )
            return
        if choice.matches(letter):
            yield _line(letter)
            count += 1


async def _joined(
    first: MessageExt | None, rest: AsyncIterator[MessageExt]
) -> AsyncIterator[MessageExt]:
    if first is not None:
        yield first
        async for letter in rest:
            yield letter


def _limit(looked_at: int, size: int, count: int, *, is_late: bool) -> tuple[str, int] | None:
    """Return the limit that ends an export before this letter and its value, None if none does."""
    if count >= MAX_EXPORTED:
        return "MAX_EXPORTED", MAX_EXPORTED
    if looked_at > MAX_LOOKED_AT:
        return "MAX_LOOKED_AT", MAX_LOOKED_AT
    if size > MAX_EXPORTED_BYTES:
        return "MAX_EXPORTED_BYTES", MAX_EXPORTED_BYTES
    return ("MAX_EXPORT_S", int(MAX_EXPORT_S)) if is_late else None


def _line(letter: MessageExt) -> bytes:
    """Return a letter as a line of JSON. `body` is Base64; `text` is there if the body is UTF-8."""
    fields: dict[str, Any] = {
        "msgId": letter.msg_id,
        "offsetMsgId": letter.offset_msg_id,
        "topic": letter.topic,
        "originTopic": letter.properties.get(p.RETRY_TOPIC),
        "brokerName": letter.broker_name,
        "queueId": letter.queue_id,
        "queueOffset": letter.queue_offset,
        "bornTimestamp": letter.born_timestamp_ms,
        "bornHost": letter.born_host,
        "storeTimestamp": letter.store_timestamp_ms,
        "reconsumeTimes": letter.reconsume_times,
        "flag": letter.flag,
        "sysFlag": letter.sys_flag,
        "properties": letter.properties,
        "bodyBytes": len(letter.body),
        "bodyBase64": base64.b64encode(letter.body).decode(),
    }
    # The exact bytes are there in any case.
    with suppress(UnicodeDecodeError):
        fields["text"] = letter.body.decode()
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
