"""Accounts of the access matrix, as ACL 1.0 and as ACL 2.0 know them.

Each account has exactly one kind of right, so that the set of accounts that a server lets in says
which right it asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tests.access.samples import GROUP, TOPIC

from cometmq import Credentials
from cometmq.protocol.request_type import ResourceKind

# What accounts of ACL 2.0 may be allowed to do.
ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
CLUSTER_RESOURCE: Final = "Cluster:*"


class Actor(NamedTuple):
    """An account: what it may do to the matrix's topic, its group, and the cluster.

    ACL 1.0 knows the actions Pub and Sub of topics and groups only.
    """

    name: str
    topic: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    is_admin: bool = False

    @property
    def credentials(self) -> Credentials:
        # Java wants more than six characters of both.
        return Credentials(f"actor-{self.name}", f"secret-of-{self.name}")

    def owned(self, kind: ResourceKind) -> tuple[str, ...]:
        """Return what the account may do to the matrix's topic, its group, or the cluster."""
        owned = {
            ResourceKind.TOPIC: self.topic,
            ResourceKind.GROUP: self.group,
            ResourceKind.CLUSTER: self.cluster,
        }
        return owned[kind]

    def entries(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the entries of the account's policy: each a resource with its actions."""
        every = (
            (f"Topic:{TOPIC}", self.topic),
            (f"Group:{GROUP}", self.group),
            (CLUSTER_RESOURCE, self.cluster),
        )
        return [(resource, actions) for resource, actions in every if actions]


OWNER: Final = Actor("owner", ACTIONS, ACTIONS, ACTIONS, is_admin=True)
NOBODY: Final = Actor("nobody")
PUBLISHER: Final = Actor("publisher", topic=("Pub",))
SUBSCRIBER: Final = Actor("subscriber", topic=("Sub",), group=("Sub",))
ACTORS_1: Final = (
    OWNER,
    NOBODY,
    PUBLISHER,
    SUBSCRIBER,
    Actor("topic-only", topic=("Pub", "Sub")),
    Actor("group-only", group=("Sub",)),
    Actor("group-pub", topic=("Pub", "Sub"), group=("Pub",)),
)
ACTORS_2: Final = (
    OWNER,
    NOBODY,
    *(Actor(action.lower(), (action,), (action,), (action,)) for action in ACTIONS),
    Actor("topic-only", topic=ACTIONS),
    Actor("group-only", group=ACTIONS),
    Actor("cluster-only", cluster=ACTIONS),
)


def plain_acl_accounts(actors: Iterable[Actor]) -> str:
    """Return the accounts as plain_acl.yml has them, below its line `accounts:`."""
    lines = []
    for actor in actors:
        lines += [
            f"- accessKey: {actor.credentials.access_key}",
            f"  secretKey: {actor.credentials.secret_key}",
            f"  admin: {str(actor.is_admin).lower()}",
            "  defaultTopicPerm: DENY",
            "  defaultGroupPerm: DENY",
        ]
        for key, name, actions in (
            ("topicPerms", TOPIC, actor.topic),
            ("groupPerms", GROUP, actor.group),
        ):
            if permission := "|".join(word.upper() for word in actions if word in ("Pub", "Sub")):
                lines += [f"  {key}:", f"  - {name}={permission}"]
    return "\n".join([*lines, ""])


def user(actor: Actor) -> dict[str, str]:
    """Return the body of the request that makes the account a user of ACL 2.0."""
    return {
        "username": actor.credentials.access_key,
        "password": actor.credentials.secret_key,
        "userType": "Super" if actor.is_admin else "Normal",
    }


def policies(actor: Actor) -> dict[str, Any]:
    """Return the body of the request that gives the user its policy."""
    entries = [
        {"resource": resource, "actions": list(actions), "decision": "Allow"}
        for resource, actions in actor.entries()
    ]
    return {
        "subject": f"User:{actor.credentials.access_key}",
        "policies": [{"policyType": "Custom", "entries": entries}],
    }
