"""Serve the requests about users and policies: codes 3001 to 3010 (Java: AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from cometmq.access.users.book import (
    SUBJECT_PREFIX,
    SUPER,
    Book,
    Change,
    PutAcl,
    refuse,
    subject_name,
)
from cometmq.access.users.store import UserStore
from cometmq.logs.loggers import get_logger
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import (
    AclInfo,
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    PolicyInfo,
    UserInfo,
    UserRequestHeader,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, ext_of, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.remoting.connection import Connection
from cometmq.remoting.credentials import ACCESS_KEY
from cometmq.remoting.dispatch import Handlers

log = get_logger(__name__)

_ByName: TypeAlias = Request[UserRequestHeader]
_BySubject: TypeAlias = Request[AclRequestHeader]


class UserHandlers:
    """Reads and changes the users and policies of `store`. For the loop's thread.

    The senders of these requests have signed them: `UserRules` keeps them off the white lists.
    """

    def __init__(self, store: UserStore) -> None:
        self._store = store

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.AUTH_CREATE_USER, self.create_user)
        handlers.register(requests.AUTH_UPDATE_USER, self.update_user)
        handlers.register(requests.AUTH_DELETE_USER, self.delete_user)
        handlers.register(requests.AUTH_GET_USER, self.user)
        handlers.register(requests.AUTH_LIST_USER, self.users)
        handlers.register(requests.AUTH_CREATE_ACL, self.create_acl)
        handlers.register(requests.AUTH_UPDATE_ACL, self.update_acl)
        handlers.register(requests.AUTH_DELETE_ACL, self.delete_acl)
        handlers.register(requests.AUTH_GET_ACL, self.acl)
        handlers.register(requests.AUTH_LIST_ACL, self.acls)

    # Users

    async def create_user(self, connection: Connection, request: _ByName) -> RemotingCommand:
        info = _user_info(request)
        is_super = self._is_super(request)

        def create(book: Book) -> Book:
            made = book.create_user(info)
            if not is_super and _is_super_user(made, info.username):
                refuse("The super user can only be create by super user", ResponseCode.SYSTEM_ERROR)
            return made

        return await self._change(create, "user made", connection, request, user=info.username)

    async def update_user(self, connection: Connection, request: _ByName) -> RemotingCommand:
        info = _user_info(request)
        is_super = self._is_super(request)

        def update(book: Book) -> Book:
            changed = book.update_user(info)
            if not is_super:
                name = info.username
                if _is_super_user(changed, name) and not _is_super_user(book, name):
                    refuse(
                        "The super user can only be update by super user", ResponseCode.SYSTEM_ERROR
                    )
                _keep_super(book, name)
            return changed

        return await self._change(update, "user changed", connection, request, user=info.username)

    async def delete_user(self, connection: Connection, request: _ByName) -> RemotingCommand:
        name = request.header.username
        is_super = self._is_super(request)

        def delete(book: Book) -> Book:
            if name not in book.users:  # which is no mistake in Java
                return book
            if not is_super:
                _keep_super(book, name)
            return book.without_user(name)

        return await self._change(delete, "user deleted", connection, request, user=name)

    def user(self, _connection: Connection, request: _ByName) -> RemotingCommand:
        name = request.header.username
        if not name.strip():
            refuse("The username is blank", ResponseCode.INVALID_PARAMETER)
        user = self._store.book.users.get(name)
        return _answer(user if user is None or self._is_super(request) else _without_password(user))

    def users(
        self, _connection: Connection, request: Request[ListUsersRequestHeader]
    ) -> RemotingCommand:
        wanted = (request.header.filter or "").strip() and request.header.filter
        users = self._store.book.users.items()
        found = [user for name, user in users if not wanted or wanted in name]
        return _answer(found if self._is_super(request) else list(map(_without_password, found)))

    # Policies

    async def create_acl(self, connection: Connection, request: _BySubject) -> RemotingCommand:
        return await self._put_acl(connection, request, requests.AUTH_CREATE_ACL.body.decode)

    async def update_acl(self, connection: Connection, request: _BySubject) -> RemotingCommand:
        # Java's two do the same: both create a missing entry, and replace one that exists.
        return await self._put_acl(connection, request, requests.AUTH_UPDATE_ACL.body.decode)

    async def _put_acl(
        self, connection: Connection, request: _BySubject, decode: Callable[[bytes], AclInfo]
    ) -> RemotingCommand:
        def prepare() -> PutAcl:
            info = decode(request.body) if request.body else AclInfo()
            if subject_name(info.subject) is None:
                info.subject = request.header.subject
            return PutAcl.of(info)

        if self._store.pass_on is not None:
            return await self._store.pass_on(request)
        change = await self._store.change_by(prepare)
        await self._store.confirmed()
        return _changed("policies changed", connection, request, subject=change.subject)

    async def delete_acl(
        self, connection: Connection, request: Request[DeleteAclRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        return await self._change(
            lambda book: book.delete_acl(header.subject, header.policy_type, header.resource),
            "policies deleted",
            connection,
            request,
            subject=header.subject,
            resource=header.resource,
        )

    def acl(self, _connection: Connection, request: _BySubject) -> RemotingCommand:
        book = self._store.book
        name = subject_name(request.header.subject)
        if name is None or name not in book.users:
            refuse("The subject is not exist.")
        return _answer(book.acls.get(SUBJECT_PREFIX + name))

    def acls(
        self, _connection: Connection, request: Request[ListAclsRequestHeader]
    ) -> RemotingCommand:
        subject = (request.header.subject_filter or "").strip()
        resource = (request.header.resource_filter or "").strip()
        found = []
        for acl in self._store.book.acls.values():
            if subject not in (acl.subject or ""):
                continue
            # In Java the resource does not select if it is a part of the subject, too.
            policies = _about(acl, resource) if resource else acl.policies
            if policies:
                found.append(AclInfo(acl.subject, policies))
        return _answer(found)

    # Inside

    def _is_super(self, request: Request[Any]) -> bool:
        return _is_super_user(self._store.book, ext_of(request).get(ACCESS_KEY))

    async def _change(
        self,
        change: Change,
        what: str,
        connection: Connection,
        request: Request[Any],
        **about: str | None,
    ) -> RemotingCommand:
        if self._store.pass_on is not None:
            return await self._store.pass_on(request)
        await self._store.change(change)
        await self._store.confirmed()
        return _changed(what, connection, request, **about)


def _changed(
    what: str, connection: Connection, request: Request[Any], **about: str | None
) -> RemotingCommand:
    """Log a change that is in force, and return its answer."""
    log.info(what, by=ext_of(request).get(ACCESS_KEY), peer=connection.peer, **about)
    return response(ResponseCode.SUCCESS)


def _user_info(request: _ByName) -> UserInfo:
    """Return the user of a body, under the name of the header. Raises UserRefusedError."""
    name = request.header.username
    if not name.strip():
        refuse("The username is blank", ResponseCode.INVALID_PARAMETER)
    row = requests.AUTH_CREATE_USER
    info = row.typed_body(request) if request.body else UserInfo()
    info.username = name
    return info


def _without_password(user: UserInfo) -> UserInfo:
    """Return a user as those see it who are no Super user: else they could become one."""
    return msgspec.structs.replace(user, password=None)


def _is_super_user(book: Book, name: str | None) -> bool:
    user = book.users.get(name or "")
    return user is not None and user.user_type == SUPER


def _keep_super(book: Book, name: str | None) -> None:
    if _is_super_user(book, name):
        refuse("The super user can only be update by super user")


def _about(acl: AclInfo, resource: str) -> list[PolicyInfo]:
    policies = []
    for policy in acl.policies or ():
        entries = [entry for entry in policy.entries or () if resource in (entry.resource or "")]
        if entries:
            policies.append(PolicyInfo(policy.policy_type, entries))
    return policies


def _answer(value: UserInfo | AclInfo | list[UserInfo] | list[AclInfo] | None) -> RemotingCommand:
    """Return a success; what there is not has no body."""
    return response(ResponseCode.SUCCESS, body=encode_body(value) if value else b"")
