"""Replace the calls that the library's errors advise by pages of the console."""

from __future__ import annotations

import re
from typing import Final

from cometmq.errors import CometMQError, RemoteError, RouteNotFoundError

# Code 17 and 26 of RocketMQ: no such topic, no such group.
_NOT_THERE: Final = (17, 26)
# The calls that errors advise, and what a user of the console does instead.
_SAID: Final = tuple(
    (re.compile(call), said)
    for call, said in (
        (r"\(topics\.names\(\) has all\)", "(the page Topics has all)"),
        (r"\(groups\.names\(\) has all\)", "(the page Groups has all)"),
        (r"\(groups\.of_topic\(\) has the groups of a topic\)", "(a topic's page has its groups)"),
        (r"make it with topics\.create\(\)", "make it on the page Topics"),
        (r"make it with groups\.create\(\)", "make it on the page Groups"),
        (r"by topics\.update\(permission=6\)", "on the topic's page (Change topic)"),
        (r"an address of brokers\.addresses\(\)", "an address that the page Brokers shows"),
        (r"or offsets\.END \(-1\)", "or -1"),
    )
)


def advised(text: str) -> str:
    """Return the text of an error, with pages of the console in place of calls.

    Sentences with keys have texts of their own for the console (`locales/en-keys.json`).
    """
    for call, said in _SAID:
        text = call.sub(said, text)
    return text


def is_not_there(error: CometMQError | None) -> bool:
    """Return whether an error says that the cluster does not have the thing that was asked for."""
    if isinstance(error, RouteNotFoundError):
        return True
    return isinstance(error, RemoteError) and error.code in _NOT_THERE
