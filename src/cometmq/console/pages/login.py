"""Log in and out, and keep the choices of a browser: language and theme."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from cometmq.console.languages import LANGUAGES
from cometmq.console.refusals import Refused
from cometmq.console.routes import Routes, checked_form, console_of, read_form
from cometmq.console.users.logins import TooManyLoginsError
from cometmq.console.views.fields import Bound
from cometmq.console.views.rendering import (
    LANGUAGE_COOKIE,
    THEME_COOKIE,
    THEMES,
    language_of,
    render,
    translated,
)
from cometmq.console.web.cookies import cookies_of
from cometmq.logs.loggers import get_logger
from cometmq.metrics.exposition import CONTENT_TYPE
from cometmq.model.reports.keyed_text import text_of
from cometmq.runtime.sockets.address_list import is_own_machine

log = get_logger(__name__)

routes: Final = Routes()
MAX_LOGIN_BYTES: Final = 16 * 1024
_YEAR_S: Final = 365 * 24 * 60 * 60


@routes.page("/healthz")
async def healthz(request: Request) -> Response:
    """Say that the console serves."""
    del request  # everybody gets the same answer
    return PlainTextResponse("ok\n")


@routes.page("/metrics")
async def metrics(request: Request) -> Response:
    """Report to scrapers how often each limit of the console was hit.

    A scraper does not log in: as at brokers, the console's own machine may ask, and the addresses
    in `metrics_from`.
    """
    peer = request.client.host if request.client else ""
    local = (request.scope.get("server") or ("",))[0]
    metrics_from = console_of(request).config.metrics_from
    if (
        request.state.session is None
        and not is_own_machine(peer, local)
        and peer not in metrics_from
    ):
        raise HTTPException(
            403,
            Refused.FIGURES(address=peer),
        )
    return Response(console_of(request).metrics(), headers={"content-type": CONTENT_TYPE})


@routes.page("/login")
async def show(request: Request) -> Response:
    """Show the form, or go on if the browser is logged in."""
    if request.state.session is not None:
        return RedirectResponse(_next(request.query_params.get("next", "/")), 303)
    # A browser that has logged out has no cookie any more.
    has_ended = console_of(request).cookie_name in cookies_of(request)
    return _form(request, has_ended=has_ended)


def _form(
    request: Request, wrong: str = "", name: str = "", *, status: int = 200, has_ended: bool = False
) -> Response:
    values = {
        "wrong": wrong,
        "name": name,
        "has_ended": has_ended,
        "are_printed": console_of(request).config.accounts_file is None,
    }
    return render(request, "login.html", values, status=status)


async def _login(request: Request) -> Response:
    console = console_of(request)
    form = await read_form(request, Bound("MAX_LOGIN_BYTES", MAX_LOGIN_BYTES))
    name, address = form.get("name", ""), request.client.host if request.client else ""
    try:
        account = await console.logins.check(name, form.get("password", ""), address)
    except TooManyLoginsError as error:
        console.limit_hits.note(error)
        return _form(request, text_of(error), name, status=429)
    if account is None:
        # A text that is no account's name may be a password that was typed in the wrong place.
        who = name if console.logins.knows(name) else "(an unknown name)"
        await console.audit.refuse(who, "", address, "log in")
        wrong = translated(language_of(request), "The name or the password is wrong.")
        return _form(request, wrong, name, status=401)
    # It begins at once: an account that is changed from now on loses it.
    console.sessions.end(cookies_of(request).get(console.cookie_name, ""))
    cookie = console.sessions.begin(account)
    with _unless_full():
        await console.audit.write(name, account.role.value, address, "log in", "", "done")
    answer = RedirectResponse(_next(request.query_params.get("next", "/")), 303)
    console.give_cookie(request, answer, cookie)
    return answer


@contextmanager
def _unless_full() -> Iterator[None]:
    """Let people log in and look around when the audit log cannot be written. Actions are refused
    then.
    """
    try:
        yield
    except OSError as error:
        log.warning("audit log cannot be written", error=str(error))


async def _logout(request: Request) -> Response:
    await checked_form(request)
    console, account = console_of(request), request.state.session.account
    address = request.client.host if request.client else ""
    console.sessions.end(cookies_of(request).get(console.cookie_name, ""))
    with _unless_full():
        await console.audit.write(account.name, account.role.value, address, "log out", "", "done")
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(console.cookie_name)
    return answer


async def _choose(request: Request) -> Response:
    """Keep a language or a theme for this browser; any reader may."""
    form = await checked_form(request)
    answer = RedirectResponse(_next(form.get("next", "/")), 303)
    for cookie, value, known in (
        (LANGUAGE_COOKIE, form.get("language"), tuple(LANGUAGES)),
        (THEME_COOKIE, form.get("theme"), THEMES),
    ):
        if value in known:
            answer.set_cookie(cookie, value, max_age=_YEAR_S, httponly=True, samesite="lax")
    return answer


def _next(path: str) -> str:
    """Return where to go on: a page of this console, never another site."""
    try:
        parts = urlsplit(path)
    except ValueError:  # such as "//["
        return "/"
    if parts.scheme or parts.netloc or not path.startswith("/") or path[1:2] in ("/", "\\"):
        return "/"
    return path


routes.routes += [
    Route("/login", _login, methods=["POST"]),
    Route("/logout", _logout, methods=["POST"]),
    Route("/choices", _choose, methods=["POST"]),
]
