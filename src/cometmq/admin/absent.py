"""List the errors about topics, groups and messages that no server has.

Everybody who mistypes a name reads them, so they have keys for translation; most errors have none.
"""

from __future__ import annotations

from cometmq.model.reports.keyed_text import TextKey


class Absent(TextKey):
    """Lists what is not there, and what to check."""

    ROUTE = (
        "the name server {address} knows no route of topic {topic}; check the topic's name "
        "(topics.names() has all), or make it with topics.create()"
    )
    ROUTE_LOST = (
        "the name server {address} knows no route of topic {topic} any more: {lost}; start one of them "
        "again"
    )
    GROUP = (
        "no broker that was asked has the group {group!r}; check its name (groups.names() has all), or "
        "make it with groups.create()"
    )
    GROUP_TO_EXPLAIN = (
        "no broker that answered knows the group {group!r}; check its name (groups.names() has all)"
    )
    GROUP_LIKE = (
        "no broker that answered knows the group {group!r}; check its name (groups.names() has all); "
        "did you mean {name}?"
    )
    GROUP_UNKNOWN = (
        "it is not known whether a group exists with the name {group!r}: no broker that answered knows "
        "it, and others did not answer: {reasons}"
    )
    OFFLINE = (
        "group {group} is not online: no member of it is connected to {brokers}; start one, or check "
        "the group's name (groups.names() has all)"
    )
    ANY_BROKER = "a broker: the name servers know none"
    MESSAGE_ID = "{message!r:.80} is no message id: it is empty or has white space"
    OFFSET_ID = (
        "{message!r:.80} is no offset id of a message that is stored at a broker of this cluster; name "
        "its topic, and it is looked for by its unique id"
    )
