"""Define the headers and bodies of requests about who may do what.

Codes 50 to 53 (ACL 1.0, of 4.x) know accounts, 3001 to 3010 (ACL 2.0, of 5.x) users and policies.
"""

from __future__ import annotations

from cometmq.protocol.bodies.cluster import Body
from cometmq.protocol.header import Header

# ACL 1.0


class CreateAccessConfigRequestHeader(Header):
    """Code 50. Permissions are `name=DENY`, `name=PUB`, `name=SUB` or `name=PUB|SUB`, separated by
    commas.
    """

    access_key: str
    admin: bool = False
    default_group_perm: str | None = None
    default_topic_perm: str | None = None
    group_perms: str | None = None
    secret_key: str | None = None
    topic_perms: str | None = None
    white_remote_address: str | None = None

    def __repr__(self) -> str:
        return f"CreateAccessConfigRequestHeader(access_key={self.access_key!r})"


class DeleteAccessConfigRequestHeader(Header):
    """Code 51."""

    access_key: str


class GetBrokerAclConfigResponseHeader(Header):
    """Code 52. The versions are JSON: of the default file, and by file."""

    broker_addr: str
    broker_name: str
    cluster_name: str
    version: str
    all_acl_file_version: str | None = None


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """Code 53: addresses separated by commas. Without a path, or with an empty one, they are for
    the default file; mqadmin of 4.9 sends none.
    """

    global_white_addrs: str
    acl_file_full_path: str | None = None


# ACL 2.0


class UserRequestHeader(Header):
    """Codes 3001 to 3004."""

    username: str


class ListUsersRequestHeader(Header):
    """Code 3005: the users whose names contain `filter`."""

    filter: str | None = None


class AclRequestHeader(Header):
    """Codes 3006, 3007 and 3009."""

    subject: str


class DeleteAclRequestHeader(Header):
    """Code 3008: a subject's policies for one resource, or for all if none is named."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequestHeader(Header):
    """Code 3010: the policies whose subjects and resources contain these texts."""

    resource_filter: str | None = None
    subject_filter: str | None = None


class UserInfo(Body, omit_defaults=True):
    """A user in requests and answers; properties that a change leaves out stay."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(Body, omit_defaults=True):
    """Says what is allowed or denied for one resource."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body, omit_defaults=True):
    """Holds the entries of one type, Custom or Default."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body, omit_defaults=True):
    """Says what a subject such as `User:name` may do."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
