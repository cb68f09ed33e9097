"""Says in a console user's words what the library's errors advise a program to call."""

from __future__ import annotations

import re
from typing import Final

from cometmq.errors import CometMQError, RemoteError, RouteNotFoundError

# Code 17 and 26 of RocketMQ: no such topic, no such group.
_NOT_THERE: Final = (17, 26)
# What a program calls, and what a user of the console does instead. The words before a call are part of
# its pattern where they would not fit any more.
_SAID: Final = tuple(
    (re.compile(call), said)
    for call, said in (
        (r"\(topics\.names\(\) has all\)", "(the page Topics has all)"),
        (r"\(groups\.names\(\) has all\)", "(the page Groups has all)"),
        (r"\(groups\.of_topic\(\) has the groups of a topic\)", "(a topic's page has its groups)"),
        (r"make it(?: with|:) topics\.create\([^()]*\)", "make it on the page Topics"),
        (r"make it(?: with|:) groups\.create\([^()]*\)", "make it on the page Groups"),
        (
            r": topics\.update\(([^()]*?), read_queues=([^()]*?), write_queues=([^()]*?)\)",
            r" on the page of topic \1 (Change topic): \2 to read, \3 to write",
        ),
        (
            r"give it some: topics\.update\(([^()]*?), write_queues=4\)",
            r"give it some on the page of topic \1 (Change topic)",
        ),
        (
            r": topics\.update\(([^()]*?), permission=6\)",
            r" on the page of topic \1 (Change topic)",
        ),
        (r"by topics\.update\(permission=6\)", "on the topic's page (Change topic)"),
        (
            r"switch it on: groups\.update\(([^()]*?), consume_enable=True\)",
            r"switch it on by Resume on the page of group \1",
        ),
        (
            r"allow it again: groups\.set_may_read\(([^()]*?), ([^()]*?), True\)",
            r"allow it again by Resume on the page of the offsets of group \1 in topic \2",
        ),
        (
            r"ask members yourself: groups\.running_info\(GROUP, CLIENT\)",
            "look at their own pages, which the group's page links to",
        ),
        (
            r"\(groups\.running_info\(…, stacks=True\) shows its threads\)",
            "(Ask for the stacks on the member's page shows its threads)",
        ),
        (
            r"reset the group: offsets\.reset_to_time\(\), or offsets\.reset_queue\(\) for one queue",
            (
                "reset the group on the page of its offsets (Move its offsets), or one queue there "
                "(Set one queue)"
            ),
        ),
        (
            (
                r"messages\.given_up_halves\(\) lists what brokers gave up, and messages\.resume_half\(\) "
                r"has them ask again"
            ),
            "the page Transactions lists what brokers gave up, and has them ask again (Resume)",
        ),
        (
            r"send it again: messages\.redrive\(ID, ([^(),]*), ids=[^()]*\)",
            r"send it again on the page Dead letters of group \1",
        ),
        (
            r"call brokers\.delete_expired_files\(\)",
            "delete what has expired on the broker's page (Delete expired files)",
        ),
        (
            r"set brokerPermission=6 by brokers\.update_config\(\)",
            "set brokerPermission=6 on the broker's page (Settings)",
        ),
        (
            r"give it back: brokers\.add_write_permission\(([^()]*)\)",
            r"give it back on the page of broker \1",
        ),
        (r"an address of brokers\.addresses\(\)", "an address that the page Brokers shows"),
        (
            r"offsets\.skip\(([^(),]*), [^()]*\) skips the messages that wait",
            r"use Skip what waits on the page of group \1 (Offsets)",
        ),
        (r"or offsets\.END \(-1\)", "or -1"),
    )
)


def advised(text: str) -> str:
    """Return what an error says, with pages of the console in place of calls.

    In other languages the catalogue has it so.
    """
    for call, said in _SAID:
        text = call.sub(said, text)
    return text


def is_not_there(error: CometMQError | None) -> bool:
    """Return whether an error says that the cluster does not have what was asked for."""
    if isinstance(error, RouteNotFoundError):
        return True
    return isinstance(error, RemoteError) and error.code in _NOT_THERE
