"""Stands before all pages: who may call, from where, and what browsers may do with the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cometmq.console.accounts import Account, Role
from cometmq.runtime.addresses import bare_host, is_loopback

if TYPE_CHECKING:
    from cometmq.console.state import Console

# Nothing inline, nothing from elsewhere: a script that gets into a page by a body or a name does not run.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
# What a browser needs before anybody has logged in.
_OPEN_PATHS: Final = ("/static/", "/login", "/healthz")
# What an open page reads by itself does not count as use of a session.
_STREAMS: Final = ("/events", "/messages/tail")
EVERYBODY: Final = Account("everybody", Role.OPERATOR)


class Guard:
    """Lets a request through with `state.session`, or answers it.

    It refuses names of the console that it does not have (another site's page may have its own name
    lead to this address) and forms that pages of other sites post.
    """

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith("/static/"):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        request = Request(scope)
        request.state.session = None
        answer = self._refusal(request)
        if answer is None:
            cookie = request.cookies.get(self._console.cookie_name, "")
            request.state.session = self._console.sessions.find(
                cookie, uses="x-refresh" not in request.headers and scope["path"] not in _STREAMS
            )
            if request.state.session is None and self._console.config.accounts is None:
                answer = self._let_in(request)
            elif request.state.session is None and not scope["path"].startswith(_OPEN_PATHS):
                answer = _to_login(request)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        name = bare_host(urlsplit(f"//{host}").hostname or "") if host else ""
        if not (is_loopback(name) or name in self._console.hosts):
            return PlainTextResponse(
                f"The console does not know itself as {name[:100]!r}. Call it by its address, or start "
                "it with --allow-host for this name.\n",
                421,
            )
        if request.method in ("GET", "HEAD"):
            return None
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("The form came from another site.\n", 403)
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("The form came from another site.\n", 403)
        return None

    def _let_in(self, request: Request) -> Response | None:
        """Begin a session without a login; a console without accounts has one operator, everybody."""
        if request.url.path.startswith(_OPEN_PATHS):
            return None
        if request.method != "GET":
            return PlainTextResponse("Load a page first.\n", 403)
        answer = RedirectResponse(_path(request), 303)
        self._console.give_cookie(answer, self._console.sessions.begin(EVERYBODY))
        return answer


def _path(request: Request) -> str:
    query = request.url.query
    # Two slashes would name another host.
    path = "/" + request.url.path.lstrip("/\\")
    return f"{path}?{query}" if query else path


def _to_login(request: Request) -> Response:
    if "hx-request" in request.headers:
        # The page reloads, and comes here without this header.
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    if request.method != "GET":
        return PlainTextResponse("Your session has ended: log in and repeat it.\n", 401)
    if request.url.path in _STREAMS:
        return PlainTextResponse("Your session has ended.\n", 401)
    return RedirectResponse(f"/login?next={quote(_path(request), safe='')}", 303)
