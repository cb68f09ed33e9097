"""Register pages and actions, and carry actions out.

A page answers GET and changes nothing; readers may see it. An action answers POST, only operators may
do it, and this module does what all actions need: the form's token, the preview and typed
confirmation of what destroys, and the audit log.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cometmq.console.limits import LimitMetError
from cometmq.console.refusals import Refused
from cometmq.console.users.audit import action_id
from cometmq.console.users.sessions import Note
from cometmq.console.views.fields import Bound, too_long
from cometmq.console.views.rendering import localized, render, words
from cometmq.console.watching.asking import for_a_page
from cometmq.console.web.cookies import cookies_of
from cometmq.errors import CometMQError, ServersFailedError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.slices import run_slices

if TYPE_CHECKING:
    from cometmq.console.state import Console

log = get_logger(__name__)

MAX_FORM_BYTES: Final = 1024 * 1024
FORM_BYTES: Final = Bound("MAX_FORM_BYTES", MAX_FORM_BYTES)
MAX_FORM_FIELDS: Final = 2000
MAX_FIELD_NAME: Final = 255
# Characters of a field. Handlers take longer for longer ones: a MiB of keys took 190 ms.
MAX_FIELD: Final = 128 * 1024
# The body of a message, and a schema, which has a limit of its own.
LONG_FIELDS: Final = ("body", "text")
MAX_WHY: Final = 500
# The id of a message. Its end distinguishes it from the one beside it.
_ID: Final = re.compile(r"[0-9A-Fa-f]{24,}")
_WORD_CHARACTERS: Final = 6
# This much of a field is decoded in a step.
_PIECE_BYTES: Final = 2048
# A form up to this length is decoded at once, without waiting for a turn: it takes 0.7 ms at most.
_SHORT_BYTES: Final = 4096
Form = Mapping[str, str]
Page = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Is what a form asks for, checked but not done yet.

    `what` names it ("delete topic"), in English for the audit log; pages show it in their language.
    `target` is what it is done to, and what must be typed to confirm it if `preview` says, in
    sentences, what it destroys. `perform` does it and may
    return an `Outcome`. The browser then goes to `back`, or after a failure to `again`, if that is
    given: the form, filled in as it was.
    """

    what: str
    target: str
    perform: Callable[[], Awaitable[Outcome | None]]
    back: str
    again: str | None = None
    preview: Sequence[str] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The text that must be typed: the target, or only the end of an id, which is too long to
        type.
        """
        return self.target[-_WORD_CHARACTERS:] if _ID.fullmatch(self.target) else self.target


@dataclass(frozen=True, slots=True)
class Outcome:
    """Is what an action has done: a sentence, and a line for each server or message.

    `text` is English, with places such as `%(count)s` for `values`: the audit log has it as it is, the
    page in its language. `lines` are for the page alone. `failed` says that a part of it failed.
    `shown_at` is the address of the page that shows what was made.
    """

    text: str
    lines: Sequence[str] = ()
    failed: bool = False
    shown_at: str = ""
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def in_english(self) -> str:
        return self.text % self.values if self.values else self.text


Handler = Callable[[Request, Form], Awaitable[Action]]


def console_of(request: Request) -> Console:
    """Return the console that serves a request."""
    found: Console = request.app.state.console
    return found


def account_of(request: Request) -> str:
    """Return the name of the account that asks."""
    name: str = request.state.session.account.name
    return name


class Routes:
    """Collects the pages and actions of a module."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        # The pages that send events for as long as somebody looks; the guard counts them apart.
        self.streams: set[str] = set()
        # The name of each action, by its path.
        self.actions: dict[str, str] = {}

    def page(self, path: str, *, reads_messages: bool = False) -> Callable[[Page], Page]:
        """Have a function answer GET at `path`, for every account that is logged in.

        An account has few pages that read messages made at once: sixty would fill the memory.
        """

        def register(page: Page) -> Page:
            async def endpoint(request: Request) -> Response:
                console, session = console_of(request), request.state.session
                who = session.account.name if session is not None else ""
                # The page's time begins with its turn.
                async with console.message_reads.turn(who) if reads_messages else nullcontext():
                    with for_a_page(console.config.wait_s, partial(console.turns.turn, who)):
                        return await page(request)

            self.routes.append(Route(path, endpoint, methods=["GET"]))
            return page

        return register

    def stream(self, path: str) -> Callable[[Page], Page]:
        """Have a function answer GET at `path` by events without end."""

        def register(page: Page) -> Page:
            self.streams.add(path)
            self.routes.append(Route(path, page, methods=["GET"]))
            return page

        return register

    def action(self, path: str, *, what: str) -> Callable[[Handler], Handler]:
        """Have a function turn a form that is posted to `path` into an action, for operators.

        `what` names the action in the audit log if it is refused before its target is known.
        """

        def register(handler: Handler) -> Handler:
            async def endpoint(request: Request) -> Response:
                return await _act(request, handler, what)

            self.routes.append(Route(path, endpoint, methods=["POST"]))
            self.actions[path] = what
            return handler

        return register


class Fields(dict[str, str]):
    """Holds the fields of a form. One that is needed and is not there gives status 400."""

    def __missing__(self, name: str) -> str:
        raise HTTPException(400, Refused.FORM_LACKS_FIELD(field=name))


async def read_form(request: Request, bound: Bound = FORM_BYTES) -> Fields:
    """Return the fields of a posted form; of several with one name all values, joined by newlines.

    Raises HTTPException for a body that is longer than `bound` (bytes) or no form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "the body must be a form (application/x-www-form-urlencoded)")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > bound.value:
                raise LimitMetError(413, Refused.FORM_BYTES(), *bound, Refused.GIVE_LESS())
    except ClientDisconnect as error:
        raise HTTPException(400, "the form was cut off") from error
    values: dict[str, list[str]] = {}
    try:
        steps = _read_fields(bytes(body), values)
        if len(body) <= _SHORT_BYTES:
            deque(steps, maxlen=0)
        else:
            await run_slices(steps)
    except ValueError as error:
        raise HTTPException(400, Refused.FORM_UNREADABLE(error=error)) from error
    form = Fields((name, "\n".join(given)) for name, given in values.items())
    for name, text in form.items():
        if len(text) > MAX_FIELD and name not in LONG_FIELDS:
            raise too_long(f"{name:.100}", len(text), "MAX_FIELD", MAX_FIELD)
    return form


def _read_fields(body: bytes, values: dict[str, list[str]]) -> Iterator[None]:
    """Decode a form into `values`, in steps. Raises ValueError, LimitMetError.

    Each escape takes Python some time: a MiB of them took 170 ms in one piece.
    """
    if body.count(b"&") >= MAX_FORM_FIELDS:
        raise LimitMetError(
            400,
            Refused.FORM_FIELDS(count=body.count(b"&") + 1),
            "MAX_FORM_FIELDS",
            MAX_FORM_FIELDS,
            Refused.CHOOSE_LESS(),
        )
    for field_ in body.split(b"&"):
        if field_:
            coded_name, _, coded_value = field_.partition(b"=")
            name = yield from _decoded(coded_name)
            value = yield from _decoded(coded_value)
            if len(name) > MAX_FIELD_NAME:
                raise LimitMetError(
                    400,
                    Refused.FIELD_NAME(count=len(name)),
                    "MAX_FIELD_NAME",
                    MAX_FIELD_NAME,
                    Refused.GIVE_SHORTER(),
                )
            values.setdefault(name, []).append(value)


def _decoded(text: bytes) -> Generator[None, None, str]:
    """Return the text that a part of a form encodes."""
    parts, at = [], 0
    while at < len(text):
        end = at + _PIECE_BYTES
        # An escape is not cut.
        cut = text.find(b"%", end - 2, end)
        end = end if cut < 0 else cut
        parts.append(unquote_to_bytes(text[at:end].replace(b"+", b" ")))
        at = end
        yield
    return b"".join(parts).decode()


async def checked_form(request: Request) -> Fields:
    """Return the fields of a form that carries the session's token; 403 without it.

    401 if the session has ended while the form came, which takes a slow browser half a minute.
    """
    form = await read_form(request)
    session = request.state.session
    if session is not None:
        check_session(request)
    token = form.pop("csrf", "") or request.headers.get("x-csrf-token", "")
    if session is None or not session.accepts(token):
        raise HTTPException(403, "the form has no valid token: load the page again and repeat it")
    return form


def check_session(request: Request) -> None:
    """Raise HTTPException if the session of a long request has ended meanwhile: a user that has
    logged out, or an account that is gone, does and gets nothing more.
    """
    console = console_of(request)
    cookie = cookies_of(request).get(console.cookie_name, "")
    if console.sessions.find(cookie, uses=False) is not request.state.session:
        raise HTTPException(401, "Your session has ended: log in and repeat it.")


async def _act(request: Request, handler: Handler, what: str) -> Response:
    form = await checked_form(request)
    console, session = console_of(request), request.state.session
    address = request.client.host if request.client else ""
    who, role = session.account.name, session.account.role.value
    if not session.is_operator:
        await console.audit.refuse(who, role, address, what)
        raise HTTPException(403, "only operators may do this; your account is a reader")
    why, confirmed = form.pop("why", "").strip(), form.pop("confirm", None)
    confirmed = confirmed if confirmed is None else confirmed.strip()
    if len(why) > MAX_WHY:
        raise LimitMetError(
            400,
            Refused.CHARACTERS(field="reason", count=len(why)),
            "MAX_WHY",
            MAX_WHY,
            Refused.GIVE_SHORTER(),
        )
    action = await handler(request, form)
    if action.preview is not None and confirmed not in (action.target, action.word):
        asked = {
            "action": action,
            "form": {**form, **action.fields},
            "why": why,
            "wrong": confirmed,
        }
        return render(request, "confirm.html", asked, status=200 if confirmed is None else 422)
    check_session(request)
    number = action_id()

    async def write(outcome: str, said: str = "") -> None:
        await console.audit.write(
            who, role, address, action.what, action.target, outcome,
            why=why, said=said, details=action.details, action=number,
        )  # fmt: skip

    try:
        await write("begun")
    except OSError as error:
        log.warning("audit log cannot be written", error=str(error))
        raise HTTPException(503, Refused.AUDIT_LOG(error=error)) from error
    try:
        note = await _performed(request, action, write)
    except OSError as error:
        # It is done, and the log says that it has begun.
        log.warning("audit log cannot be written", error=str(error))
        _ = words(request)
        text = _("the audit log cannot be written: %(why)s", why=error)
        note = Note(f"{_(action.what)} {action.target}: {text}", failed=True)
    session.note(note)
    console.recent.forget()
    return RedirectResponse((action.again or action.back) if note.failed else action.back, 303)


async def _performed(
    request: Request, action: Action, write: Callable[..., Awaitable[None]]
) -> Note:
    """Carry an action out, write how it ended, and return what the next page says of it."""
    _ = words(request)
    name = f"{_(action.what)} {action.target}"
    try:
        outcome = await action.perform() or Outcome("")
    except ServersFailedError as error:
        await write("failed", str(error))
        lines = [
            f"{server}: {localized(request, reason)}" for server, reason in error.errors.items()
        ]
        return Note(f"{name}: {localized(request, error)}", failed=True, lines=lines)
    except (CometMQError, OSError) as error:
        console_of(request).limit_hits.note(error)
        # An OSError here is about a file that the action writes; those of the audit log come from
        # `write`.
        await write("failed", str(error))
        return Note(f"{name}: {localized(request, error)}", failed=True)
    except BaseException:
        await write("failed", "the console failed or was stopped, see its log; a part may be done")
        raise
    await write("failed" if outcome.failed else "done", outcome.in_english)
    text = f"{name}: {_(outcome.text or 'done', **outcome.values)}"
    return Note(text, outcome.failed, list(outcome.lines), shown_at=outcome.shown_at)
