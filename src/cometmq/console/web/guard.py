"""Stand before all pages: check each caller and its address, and limit what browsers may do with
the answers.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cometmq.console.limits import LimitMetError, note
from cometmq.console.refusals import Refused
from cometmq.console.users.accounts import Account, Role
from cometmq.console.views.rendering import localized
from cometmq.console.web.connections import MAX_OF_ADDRESS
from cometmq.console.web.cookies import cookies_of
from cometmq.console.web.proxies import take_forwarded
from cometmq.logs.loggers import get_logger
from cometmq.runtime.sockets.addresses import bare_host, network_of

if TYPE_CHECKING:
    from cometmq.console.state import Console

log = get_logger(__name__)

# The key under which requests under way are counted: an account, and whether they are streams; or the
# network of a client that a proxy names, and None.
Busy = tuple[str, bool | None]
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
# The paths that need no login, beside all below /static/: for browsers before a login, and for
# monitoring.
_OPEN_PATHS: Final = ("/login", "/healthz", "/metrics")
EVERYBODY: Final = Account("everybody", Role.OPERATOR)
MAX_QUERY_BYTES: Final = 8 * 1024
# No page's path has a hundred. Looking for a file takes a while for each of its parts.
MAX_PATH_BYTES: Final = 1024
# How many requests one account may have under way, so that the others are served, too; and how many
# pages may be live, of one account and of all.
MAX_REQUESTS_OF_ACCOUNT: Final = 64
MAX_STREAMS_OF_ACCOUNT: Final = 250
MAX_STREAMS: Final = 500
# When a client that met a limit may ask again.
_AGAIN: Final = {"retry-after": "2"}
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)


class Guard:
    """Lets a request through with `state.session`, or answers it.

    It refuses names of the console that it does not have (another site's page may have its own name
    lead to this address) and requests that pages of other sites make, by a plain text in the
    requester's language: a page would cost too much in a flood of such requests. `streams` are the
    paths of pages that send events without end.
    """

    def __init__(self, app: ASGIApp, console: Console, streams: frozenset[str]) -> None:
        self._app = app
        self._console = console
        self._streams = streams
        # The requests under way, by account and whether they are streams.
        self._busy: Counter[Busy] = Counter()

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

        is_forwarded = take_forwarded(scope, self._console.config.trusted_proxies)
        request = Request(scope)
        request.state.session = None
        answer = self._answer(request, is_forwarded=is_forwarded)
        if answer is not None:
            await answer(scope, receive, send_with_headers)
            return
        busy = [] if (who := self._counted_as(request)) is None else [who]
        if is_forwarded:
            busy.append(_client_of(request))
        self._busy.update(busy)
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:  # the outermost edge of a request; its page has been sent
            log.exception("a page has failed", path=scope["path"])
        finally:
            self._busy.subtract(busy)
            for each in busy:
                if not self._busy[each]:
                    del self._busy[each]

    def _answer(self, request: Request, *, is_forwarded: bool) -> Response | None:
        """Answer a request that may not go on; None lets it through."""
        try:
            self._check_origin(request)
            if is_forwarded:
                self._check_client(request)
            return self._look_up(request)
        except HTTPException as refused:
            note(self._console.limit_hits, refused)
            text = f"{localized(request, refused.detail)}\n"
            return PlainTextResponse(text, refused.status_code, refused.headers)

    def _check_client(self, request: Request) -> None:
        """Bound the requests of a client behind a proxy; of others the connections are bounded."""
        client = _client_of(request)
        if self._busy[client] >= MAX_OF_ADDRESS:
            raise LimitMetError(
                429,
                Refused.REQUESTS_OF_CLIENT(count=self._busy[client], client=client[0]),
                "MAX_OF_ADDRESS",
                MAX_OF_ADDRESS,
                Refused.CLOSE_PAGES(),
                _AGAIN,
            )

    def _look_up(self, request: Request) -> Response | None:
        """Find the session of a request; return where a request without one is sent."""
        cookie = cookies_of(request).get(self._console.cookie_name, "")
        is_stream = request.scope["path"] in self._streams
        request.state.session = self._console.sessions.find(
            cookie, uses="x-refresh" not in request.headers and not is_stream
        )
        if request.state.session is not None:
            self._check_account(request)
            return None
        if _is_open(request.scope["path"]):
            return None
        if self._console.config.accounts is None:
            return self._let_in(request)
        return self._to_login(request, is_stream=is_stream)

    def _counted_as(self, request: Request) -> Busy | None:
        session = request.state.session
        path = request.scope["path"]
        if session is None or path.startswith("/static/"):
            return None
        return session.account.name, path in self._streams

    def _check_account(self, request: Request) -> None:
        """Bound the requests of an account that are under way, and the live pages of all."""
        who = self._counted_as(request)
        if who is None:
            return
        name, is_stream = who
        if not is_stream and self._busy[who] >= MAX_REQUESTS_OF_ACCOUNT:
            raise LimitMetError(
                429,
                Refused.REQUESTS_OF_ACCOUNT(account=name, count=self._busy[who]),
                "MAX_REQUESTS_OF_ACCOUNT",
                MAX_REQUESTS_OF_ACCOUNT,
                Refused.TRY_AGAIN(),
                _AGAIN,
            )
        if is_stream and self._busy[who] >= MAX_STREAMS_OF_ACCOUNT:
            raise LimitMetError(
                429,
                Refused.LIVE_PAGES_OF_ACCOUNT(account=name, count=self._busy[who]),
                "MAX_STREAMS_OF_ACCOUNT",
                MAX_STREAMS_OF_ACCOUNT,
                Refused.CLOSE_SOME(),
                _AGAIN,
            )
        live = sum(n for (_, one), n in self._busy.items() if one) if is_stream else 0
        if is_stream and live >= MAX_STREAMS:
            raise LimitMetError(
                429,
                Refused.LIVE_PAGES(count=live),
                "MAX_STREAMS",
                MAX_STREAMS,
                Refused.CLOSE_SOME(),
                _AGAIN,
            )

    def _check_origin(self, request: Request) -> None:
        """Refuse a host name that is not the console's, a long address, and requests of other
        sites' pages.
        """
        host = request.headers.get("host", "")
        name = _host_name(host)
        if not name:
            raise HTTPException(421, "The request does not say by which name it calls the console.")
        if not self._is_own(name):
            raise HTTPException(421, Refused.UNKNOWN_HOST(name=name))
        if (length := len(request.scope["query_string"])) > MAX_QUERY_BYTES:
            raise LimitMetError(
                414,
                Refused.QUERY_BYTES(count=length),
                "MAX_QUERY_BYTES",
                MAX_QUERY_BYTES,
                Refused.ASK_FOR_LESS(),
            )
        if (length := len(request.scope["path"])) > MAX_PATH_BYTES:
            raise LimitMetError(
                414,
                Refused.PATH_BYTES(count=length),
                "MAX_PATH_BYTES",
                MAX_PATH_BYTES,
                Refused.NO_SUCH_ADDRESS(),
            )
        site = request.headers.get("sec-fetch-site", "same-origin")
        if request.method in ("GET", "HEAD"):
            # A link from elsewhere is welcome; a picture or a script that requests our pages is not.
            if site in _ELSEWHERE and request.headers.get("sec-fetch-mode") != "navigate":
                raise HTTPException(403, "Another site's page asks for this.")
            return
        # A proxy may speak TLS for the console, so the scheme is not compared.
        origin = request.headers.get("origin")
        own = (f"http://{host}".lower(), f"https://{host}".lower())
        if (origin is not None and origin.lower() not in own) or site in _ELSEWHERE:
            raise HTTPException(403, "The form came from another site.")

    def _is_own(self, name: str) -> bool:
        """Return whether the console may be called by this name.

        Any address will do: what another site's page can turn to this machine is its own name.
        """
        return name in self._console.hosts or name == "localhost" or _is_address(name)

    def _let_in(self, request: Request) -> Response:
        """Begin a session without a login; a console without accounts has one operator, everybody."""
        if request.method != "GET":
            raise HTTPException(403, "Load a page first.")
        answer = RedirectResponse(_path(request), 303)
        self._console.give_cookie(request, answer, self._console.sessions.begin(EVERYBODY))
        return answer

    def _to_login(self, request: Request, *, is_stream: bool) -> Response:
        if "hx-request" in request.headers:
            # The page reloads, and comes here without this header.
            return Response(status_code=204, headers={"HX-Refresh": "true"})
        if is_stream:
            raise HTTPException(401, "Your session has ended.")
        if request.method not in ("GET", "HEAD"):
            raise HTTPException(401, "Your session has ended: log in and repeat it.")
        return RedirectResponse(f"/login?next={quote(_path(request), safe='')}", 303)


def _client_of(request: Request) -> Busy:
    return network_of(request.client.host if request.client else ""), None


def _host_name(host: str) -> str:
    """Return the name of a Host header, in small letters and without its port; "" if it is none."""
    match = _HOST.fullmatch(host)
    return bare_host(match[1].lower()) if match else ""


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
