"""Write docs/reference/requests.md: every request code of Java, with its servers here or the reason for none.

    .venv/bin/python scripts/request_reference.py

The calls that register handlers show which servers serve a code. The table in
`cometmq.protocol.refused_requests` gives the reason why no server serves a code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import cometmq
from cometmq.protocol.codes import OwnRequestCode, RequestCode, ResponseCode
from cometmq.protocol.refused_requests import NOT_PERMITTED, REFUSED
from cometmq.protocol.request_type import AnyRequestType, Right
from cometmq.protocol.requests import REQUESTS

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "requests.md"
HEAD: Final = """\
<!-- Written by scripts/request_reference.py: change the code, then run it. -->
# Requests

This page lists all request codes of RocketMQ 4.9.8, 5.3.3 and 5.5.0 and CometMQ's own (from 30001 on), with the servers
that serve each code, or the reason why none does. A server answers a code that it does not serve with code 3
(REQUEST_CODE_NOT_SUPPORTED) and the reason, and the codes 301 and 302 with 16 (NO_PERMISSION). It takes requests marked
*administrators* only from its own machine and from the addresses in `adminFrom`, and requests marked *brokers* only from
the broker that they are about. If the last column has a code, a slave refuses the request with that code and names its
master; with 0 the slave answers a success and leaves the work to its master.
"""
SERVERS: Final = {
    "broker": "broker",
    "namesrv": "name server",
    "client": "client",
    # Where access control of their kind is on; else these are refused.
    "access": "broker and name server with access control",
}
_REGISTERED: Final = re.compile(r"(?:register|add)\(\s*requests\.([A-Z0-9_]+)\b")
_MARKS: Final = {Right.ADMIN: " *administrators*", Right.BROKER: " *brokers*"}


def served(room: str) -> set[int]:
    """Return the codes for which a room of the source registers handlers."""
    texts = (path.read_text() for path in Path(cometmq.__file__).parent.glob(f"{room}/**/*.py"))
    codes = {row.name: row.code for row in REQUESTS.values()}
    return {codes[name] for text in texts for name in _REGISTERED.findall(text)}


def page() -> str:
    """Return the page. Raises ValueError for a code that is neither served nor refused, or both."""
    by_server = {name: served(room) for room, name in SERVERS.items()}
    codes = sorted([*RequestCode, *OwnRequestCode])
    for code in codes:
        by_all = any(code in by_server[name] for room, name in SERVERS.items() if room != "access")
        if by_all == (code in REFUSED):
            raise ValueError(
                f"{code.name} ({code}) must either have a handler or be in REFUSED of "
                "cometmq.protocol.refused_requests, not both"
            )
    guarded = by_server[SERVERS["access"]]
    rows = [
        code
        for code in codes
        if code in guarded or (code not in REFUSED and code not in NOT_PERMITTED)
    ]
    return "\n".join(
        [
            HEAD,
            "## Served\n",
            "| code | name | by | a slave's answer |",
            "| ---: | --- | --- | --- |",
            *(
                f"| {code} | {code.name}{_MARKS.get(REQUESTS[code].right, '')} | "
                f"{', '.join(name for name, found in by_server.items() if code in found)} | "
                f"{_slaves_answer(REQUESTS[code])} |"
                for code in rows
            ),
            "\n## Refused on purpose\n",
            *_refused(),
            "",
        ]
    )


def _slaves_answer(row: AnyRequestType) -> str:
    return "" if row.on_slave is None else f"{int(row.on_slave)} {ResponseCode(row.on_slave).name}"


def _refused() -> Iterator[str]:
    yield "| code | name | why, and what to do |"
    yield "| ---: | --- | --- |"
    for code, reason in sorted({**REFUSED, **NOT_PERMITTED}.items()):
        yield f"| {int(code)} | {RequestCode(code).name} | {reason} |"


if __name__ == "__main__":
    PAGE.write_text(page())
