"""Says in a console user's words what the library's errors advise a program to call."""

from __future__ import annotations

import re
from typing import Final

from cometmq.errors import CometMQError, RemoteError, RouteNotFoundError

# Code 17 and 26 of RocketMQ: no such topic, no such group.
_NOT_THERE: Final = (17, 26)
_PAGES: Final = {"topics": "Topics", "groups": "Groups"}
_SAID: Final = (
    (re.compile(r"\((topics|groups)\.names\(\) has all\)"), "(the page {page} has all)"),
    (re.compile(r"make it with (topics|groups)\.create\(\)"), "make it on the page {page}"),
    (re.compile(r"make it: (topics|groups)\.create\([^()]*\)"), "make it on the page {page}"),
)


def advised(text: str) -> str:
    """Return what an error says, with pages of the console in place of calls.

    In other languages the catalogue has it so.
    """
    for call, page in _SAID:
        text = call.sub(lambda at, page=page: page.format(page=_PAGES[at[1]]), text)  # type: ignore[misc]  # mypy knows no type of a default
    return text


def is_not_there(error: CometMQError | None) -> bool:
    """Return whether an error says that the cluster does not have what was asked for."""
    if isinstance(error, RouteNotFoundError):
        return True
    return isinstance(error, RemoteError) and error.code in _NOT_THERE
