"""Name commands where the texts of `AdminClient` name its calls: users of a shell have no calls."""

from __future__ import annotations

from typing import Final

_SIGNED: Final = (
    "pass credentials=Credentials(access_key, secret_key) (in Spark the options accessKey and "
    "secretKeyFile)"
)
# The words of AdminClient's texts, and the words for users of commands.
_SAID: Final = (
    ("(topics.names() has all)", "(topicList has all)"),
    ("make it with topics.create()", "make it with updateTopic"),
    ("(groups.names() has all)", "(consumerProgress has those that have consumed)"),
    ("make it with groups.create()", "make it with updateSubGroup"),
    ("(groups.of_topic() has the groups of a topic)", "(statsAll -t has the groups of a topic)"),
    ("change it by access.update_user()", "change it by updateUser"),
    ("(access.users() has all)", "(listUser has all)"),
    ("(access.acls() has all)", "(listAcl has all)"),
    ("by topics.update(permission=6)", "by updateTopicPerm -p 6"),
    ("brokers.addresses()", "clusterList"),
    (_SIGNED, "give --accessKey and --secretKey, or --credentials"),
    ("pass Tls(ca_file=…) with", "give --ca-file with"),
    ("give it longer by timeout_ms", "give it longer by --timeoutMillis"),
    ("pass namesrv='host:9876'", "give --namesrvAddr host:9876"),
    ("say by cluster or broker which one is meant", "say by --clusterName or --brokerAddr which"),
)


def in_commands(text: str) -> str:
    """Return the text of an error for users of commands."""
    for call, command in _SAID:
        text = text.replace(call, command)
    return text
