"""Manage who may do what: users and policies of ACL 2.0, accounts of ACL 1.0.

Commands of mqadmin: createUser, updateUser, deleteUser, getUser, listUser, copyUser, createAcl,
updateAcl, deleteAcl, getAcl, listAcl, copyAcl, and those of `accounts`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from cometmq.admin.access.accounts import Accounts
from cometmq.admin.access.records import (
    USER_KINDS,
    USER_STATES,
    Acl,
    AclEntry,
    User,
    acl_info,
    acl_of,
    check_given,
    check_resource,
    check_subject,
    one_of,
    user_of,
)
from cometmq.admin.servers import again
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import (
    AclInfo,
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserInfo,
    UserRequestHeader,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.header import HeaderT
from cometmq.protocol.request_type import AnswerBodyT, AnswerT, BodyT, RequestType
from cometmq.remoting.client import Answer

T = TypeVar("T")

# The remark of a broker, and what to do about it.
_REMEDIES: Final = (
    ("is existed", "change it by access.update_user(), or choose another name"),
    ("acl is not exist", "check the subject (access.acls() has all)"),
    ("is not exist", "check the user's name (access.users() has all)"),
    (
        "system error occurred",
        (
            "its log says why; a broker keeps users only with authenticationMetadataProvider, and "
            "policies only with authorizationMetadataProvider in its configuration"
        ),
    ),
)


class Access(Accounts):
    """Manages access control at the masters and slaves of a cluster, or at one `broker`, which may be
    a name server of CometMQ. Calls that change servers return the servers' addresses.

    A slave of CometMQ passes changes of users and policies on to its master. A server whose access
    control is off, or of the other kind, refuses.
    """

    # Users

    async def create_user(
        self,
        name: str,
        password: str,
        *,
        kind: str = "Normal",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make a user; a Super one may do everything. Raises RemoteError if there is one already."""
        check_given("a user's name", name)
        check_given("a user's password", password)
        info = UserInfo(
            username=name, password=password, user_type=one_of("kind", kind, USER_KINDS)
        )
        return await self._put(
            requests.AUTH_CREATE_USER,
            UserRequestHeader(username=name),
            info,
            f"making user {name}",
            cluster,
            broker,
        )

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        kind: str | None = None,
        state: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change the given fields of a user."""
        check_given("a user's name", name)
        if password is None and kind is None and state is None:
            raise IllegalArgumentError("nothing is changed; give a password, kind or state")
        info = UserInfo(
            username=name,
            password=password,
            user_type=None if kind is None else one_of("kind", kind, USER_KINDS),
            user_status=None if state is None else one_of("state", state, USER_STATES),
        )
        return await self._put(
            requests.AUTH_UPDATE_USER,
            UserRequestHeader(username=name),
            info,
            f"changing user {name}",
            cluster,
            broker,
        )

    async def delete_user(
        self,
        name: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        missing_ok: bool = False,
    ) -> list[str]:
        """Delete a user. Raises RemoteError (USER_NOT_EXIST) if no broker has it, unless
        `missing_ok`.
        """
        if not missing_ok:
            await self.user(name, cluster=cluster, broker=broker)
        return await self._put(
            requests.AUTH_DELETE_USER,
            UserRequestHeader(username=name),
            None,
            f"the deletion of user {name}",
            cluster,
            broker,
        )

    async def user(
        self, name: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, User]:
        """Return a user as each broker that has it keeps it, by address."""
        check_given("a user's name", name)
        what = f"user {name}"
        asked = await self._read(
            lambda address: self._user_at(address, name), what, cluster, broker
        )
        fault = f"no broker that was asked has {what}; check its name (access.users() has all)"
        return _those_found(asked, fault, ResponseCode.USER_NOT_EXIST)

    async def users(
        self,
        containing: str | None = None,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, list[User]]:
        """Return the users of each broker, by address; `containing` is a part of their names."""
        what = "the users"
        return await self._read(
            lambda address: self._users_at(address, containing), what, cluster, broker
        )

    async def copy_users(
        self, source: str, target: str, names: Iterable[str] | None = None
    ) -> list[str]:
        """Copy users from one broker to another, and change the users that exist there already;
        return their names.

        Without `names` all are copied. `source` and `target` are broker names or addresses. Raises
        RemoteError (USER_NOT_EXIST) before anything is copied if a user is not there.
        """
        from_address, to_address = await self._one(source), await self._one(target)
        users = {user.name: user for user in await self._users_at(from_address, None)}
        chosen = _chosen(names, users, "user", from_address, ResponseCode.USER_NOT_EXIST)
        for name in chosen:
            user = users[name]
            info = UserInfo(
                username=name,
                password=user.password,
                user_type=user.kind,
                user_status=user.state,
            )
            known = await self._user_at(to_address, name)
            await self._ask_access(
                to_address,
                requests.AUTH_CREATE_USER if known is None else requests.AUTH_UPDATE_USER,
                UserRequestHeader(username=name),
                info,
                what=f"copying user {name}",
            )
        return chosen

    # Policies

    async def create_acl(
        self,
        subject: str,
        entries: Iterable[AclEntry],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Give a subject such as `User:name` further rights; it must have no policy for these
        resources yet.
        """
        return await self._put(
            requests.AUTH_CREATE_ACL,
            AclRequestHeader(subject=check_subject(subject)),
            acl_info(subject, entries),
            f"making the policies of {subject}",
            cluster,
            broker,
        )

    async def update_acl(
        self,
        subject: str,
        entries: Iterable[AclEntry],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change what a subject may do with these resources; its policies for others stay."""
        return await self._put(
            requests.AUTH_UPDATE_ACL,
            AclRequestHeader(subject=check_subject(subject)),
            acl_info(subject, entries),
            f"changing the policies of {subject}",
            cluster,
            broker,
        )

    async def delete_acl(
        self,
        subject: str,
        resource: str | None = None,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Delete a subject's policies: for one resource, or for all."""
        header = DeleteAclRequestHeader(
            subject=check_subject(subject),
            resource=None if resource is None else check_resource(resource),
        )
        return await self._put(
            requests.AUTH_DELETE_ACL,
            header,
            None,
            f"the deletion of policies of {subject}",
            cluster,
            broker,
        )

    async def acl(
        self, subject: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, Acl]:
        """Return what a subject may do, by address, from the brokers that have a policy of it."""
        check_subject(subject)
        what = f"the policies of {subject}"
        asked = await self._read(
            lambda address: self._acl_at(address, subject), what, cluster, broker
        )
        fault = f"no broker that was asked has {what}; check the subject (access.acls() has all)"
        return _those_found(asked, fault, ResponseCode.POLICY_NOT_EXIST)

    async def acls(
        self,
        subject_containing: str | None = None,
        resource_containing: str | None = None,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, list[Acl]]:
        """Return each broker's policies, by address; parts of subjects and resources select some."""
        return await self._read(
            lambda address: self._acls_at(address, subject_containing, resource_containing),
            "the policies",
            cluster,
            broker,
        )

    async def copy_acls(
        self, source: str, target: str, subjects: Iterable[str] | None = None
    ) -> list[str]:
        """Copy policies from one broker to another, and change the policies that exist there
        already; return the subjects.

        Without `subjects` all are copied. Their users must be there. Raises RemoteError
        (POLICY_NOT_EXIST) before anything is copied if a subject has none.
        """
        from_address, to_address = await self._one(source), await self._one(target)
        acls = {acl.subject: acl for acl in await self._acls_at(from_address, None, None)}
        chosen = _chosen(subjects, acls, "subject", from_address, ResponseCode.POLICY_NOT_EXIST)
        for subject in chosen:
            await self._ask_access(
                to_address,
                requests.AUTH_UPDATE_ACL,  # makes what is not there
                AclRequestHeader(subject=subject),
                acl_info(subject, acls[subject].entries),
                what=f"copying the policies of {subject}",
            )
        return chosen

    # Inside

    async def _one(self, broker: str) -> str:
        [address] = await self._servers.addresses(cluster=None, broker=broker)
        return address

    async def _ask_access(
        self,
        address: str,
        request_type: RequestType[HeaderT, BodyT, AnswerT, AnswerBodyT],
        header: HeaderT,
        body: BodyT | None = None,
        *,
        what: str,
    ) -> Answer[AnswerT, AnswerBodyT]:
        try:
            return await self._servers.ask(address, request_type, header, body, what=what)
        except RemoteError as error:
            for said, remedy in _REMEDIES:
                if said in (error.remark or ""):
                    raise again(error, f"{str(error).rstrip('.')}; {remedy}") from error
            raise

    async def _read(
        self,
        read: Callable[[str], Awaitable[T]],
        what: str,
        cluster: str | None,
        broker: str | None,
    ) -> dict[str, T]:
        return await self._at_brokers(read, what, cluster=cluster, broker=broker, slaves=True)

    async def _put(
        self,
        request_type: RequestType[HeaderT, BodyT, Any, Any],
        header: HeaderT,
        body: BodyT | None,
        what: str,
        cluster: str | None,
        broker: str | None,
    ) -> list[str]:
        changed = await self._change_at(
            lambda address: self._ask_access(address, request_type, header, body, what=what),
            what,
            cluster=cluster,
            broker=broker,
            slaves=True,
        )
        return list(changed)

    async def _user_at(self, address: str, name: str) -> User | None:
        answer = await self._ask_access(
            address,
            requests.AUTH_GET_USER,
            UserRequestHeader(username=name),
            what=f"user {name}",
        )
        return user_of(decode_body(answer.body, UserInfo)) if answer.body else None

    async def _users_at(self, address: str, containing: str | None) -> list[User]:
        answer = await self._ask_access(
            address,
            requests.AUTH_LIST_USER,
            ListUsersRequestHeader(filter=containing),
            what="the users",
        )
        found = decode_body(answer.body, list[UserInfo]) if answer.body else []
        return sorted(map(user_of, found), key=lambda user: user.name)

    async def _acl_at(self, address: str, subject: str) -> Acl | None:
        answer = await self._ask_access(
            address,
            requests.AUTH_GET_ACL,
            AclRequestHeader(subject=subject),
            what=f"the policies of {subject}",
        )
        return acl_of(decode_body(answer.body, AclInfo)) if answer.body else None

    async def _acls_at(
        self, address: str, subject_containing: str | None, resource_containing: str | None
    ) -> list[Acl]:
        header = ListAclsRequestHeader(
            subject_filter=subject_containing, resource_filter=resource_containing
        )
        answer = await self._ask_access(
            address, requests.AUTH_LIST_ACL, header, what="the policies"
        )
        found = decode_body(answer.body, list[AclInfo]) if answer.body else []
        return sorted(map(acl_of, found), key=lambda acl: acl.subject)


def _those_found(asked: Mapping[str, T | None], fault: str, code: ResponseCode) -> dict[str, T]:
    """Return the answers of the brokers that have it. Raise RemoteError if none has."""
    found = {address: one for address, one in asked.items() if one is not None}
    if not found:
        raise RemoteError(fault, code=code)
    return found


def _chosen(
    wanted: Iterable[str] | None,
    there: Iterable[str],
    kind: str,
    address: str,
    code: ResponseCode,
) -> list[str]:
    known = sorted(there)
    if wanted is None:
        return known
    chosen = list(dict.fromkeys(wanted))
    missing = [name for name in chosen if name not in known]
    if missing:
        raise RemoteError(
            f"{address} has no {kind} {', '.join(missing)}, so nothing was copied; it has "
            f"{', '.join(known) or 'none'}",
            code=code,
            address=address,
        )
    return chosen
