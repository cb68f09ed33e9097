"""Stands before all pages: who may call, from where, and what browsers may do with the answers."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cometmq.console.accounts import Account, Role
from cometmq.runtime.addresses import bare_host
from cometmq.runtime.loggers import get_logger

if TYPE_CHECKING:
    from cometmq.console.state import Console

log = get_logger(__name__)

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
_ELSEWHERE: Final = ("cross-site", "same-site")
# What a browser needs before anybody has logged in; and all below /static/.
_OPEN_PATHS: Final = ("/login", "/healthz")
EVERYBODY: Final = Account("everybody", Role.OPERATOR)
MAX_QUERY_BYTES: Final = 8 * 1024
# How many requests one account may have under way, so that the others are served, too; and how many
# pages may be live, of one account and of all.
MAX_REQUESTS_OF_ACCOUNT: Final = 64
MAX_STREAMS_OF_ACCOUNT: Final = 250
MAX_STREAMS: Final = 500
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)


class Guard:
    """Lets a request through with `state.session`, or answers it.

    It refuses names of the console that it does not have (another site's page may have its own name
    lead to this address) and requests that pages of other sites make. `streams` are the paths of
    pages that send events without end.
    """

    def __init__(self, app: ASGIApp, console: Console, streams: frozenset[str]) -> None:
        self._app = app
        self._console = console
        self._streams = streams
        # The requests under way, by account and whether they are streams.
        self._busy: Counter[tuple[str, bool]] = Counter()

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
        answer = self._refusal(request) or self._look_up(request)
        if answer is not None:
            await answer(scope, receive, send_with_headers)
            return
        who = self._counted_as(request)
        if who is not None:
            self._busy[who] += 1
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:  # the outermost edge of a request; its page has been sent
            log.exception("a page has failed", path=scope["path"])
        finally:
            if who is not None:
                self._busy[who] -= 1
                if not self._busy[who]:
                    del self._busy[who]

    def _look_up(self, request: Request) -> Response | None:
        """Find the session of a request; return an answer if it may not go on."""
        cookie = request.cookies.get(self._console.cookie_name, "")
        is_stream = request.scope["path"] in self._streams
        request.state.session = self._console.sessions.find(
            cookie, uses="x-refresh" not in request.headers and not is_stream
        )
        if request.state.session is not None:
            return self._too_many(request)
        if _is_open(request.scope["path"]):
            return None
        if self._console.config.accounts is None:
            return self._let_in(request)
        return self._to_login(request, is_stream=is_stream)

    def _counted_as(self, request: Request) -> tuple[str, bool] | None:
        session = request.state.session
        path = request.scope["path"]
        if session is None or path.startswith("/static/"):
            return None
        return session.account.name, path in self._streams

    def _too_many(self, request: Request) -> Response | None:
        who = self._counted_as(request)
        if who is None:
            return None
        name, is_stream = who
        most = MAX_STREAMS_OF_ACCOUNT if is_stream else MAX_REQUESTS_OF_ACCOUNT
        what = "pages are live" if is_stream else "requests are under way"
        if self._busy[who] >= most:
            reason = f"{most} {what} for the account {name}"
        elif is_stream and sum(n for (_, one), n in self._busy.items() if one) >= MAX_STREAMS:
            reason = f"{MAX_STREAMS} {what}"
        else:
            return None
        return PlainTextResponse(f"{reason}: try again in a moment.\n", 429, {"retry-after": "2"})

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if not self._is_own(host):
            return PlainTextResponse(
                f"The console does not know itself as {host[:100]!r}. Call it by its address, or start "
                "it with --allow-host for this name.\n",
                421,
            )
        if len(request.scope["query_string"]) > MAX_QUERY_BYTES:
            return PlainTextResponse(
                f"The address is too long: {MAX_QUERY_BYTES} bytes may follow its '?'.\n", 414
            )
        site = request.headers.get("sec-fetch-site", "same-origin")
        if request.method in ("GET", "HEAD"):
            # A link from elsewhere is welcome; a picture or a script that asks for our pages is not.
            if site in _ELSEWHERE and request.headers.get("sec-fetch-mode") != "navigate":
                return PlainTextResponse("Another site's page asks for this.\n", 403)
            return None
        # A proxy may speak TLS for the console, so the scheme is not compared.
        origin = request.headers.get("origin")
        own = (f"http://{host}".lower(), f"https://{host}".lower())
        if (origin is not None and origin.lower() not in own) or site in _ELSEWHERE:
            return PlainTextResponse("The form came from another site.\n", 403)
        return None

    def _is_own(self, host: str) -> bool:
        """Return whether the console may be called so.

        Any address will do: what another site's page can turn to this machine is its own name.
        """
        match = _HOST.fullmatch(host)
        name = bare_host(match[1].lower()) if match else ""
        return name in self._console.hosts or name == "localhost" or _is_address(name)

    def _let_in(self, request: Request) -> Response | None:
        """Begin a session without a login; a console without accounts has one operator, everybody."""
        if request.method != "GET":
            return PlainTextResponse("Load a page first.\n", 403)
        answer = RedirectResponse(_path(request), 303)
        self._console.give_cookie(answer, self._console.sessions.begin(EVERYBODY))
        return answer

    def _to_login(self, request: Request, *, is_stream: bool) -> Response:
        if "hx-request" in request.headers:
            # The page reloads, and comes here without this header.
            return Response(status_code=204, headers={"HX-Refresh": "true"})
        if is_stream:
            return PlainTextResponse("Your session has ended.\n", 401)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Your session has ended: log in and repeat it.\n", 401)
        return RedirectResponse(f"/login?next={quote(_path(request), safe='')}", 303)


def _is_open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith("/static/")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _path(request: Request) -> str:
    query = request.url.query
    # Two slashes would name another host.
    path = "/" + quote(request.scope["path"].lstrip("/\\"))
    return f"{path}?{query}" if query else path
