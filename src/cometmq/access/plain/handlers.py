"""Serve the requests by which mqadmin and `cometmq admin` change accounts (codes 50 to 53).

Java: AdminBrokerProcessor, PlainPermissionManager. Java lets every known account send them; here
they are for accounts with `admin: true`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.access.plain.accounts import Account as CheckedAccount
from cometmq.access.plain.accounts import PlainAccount, is_permission, split_permission
from cometmq.access.plain.addresses import WhiteList
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.model.topic import DataVersion
from cometmq.protocol import requests
from cometmq.protocol.bodies import access as bodies
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers

if TYPE_CHECKING:
    from cometmq.access.plain.rules import PlainRules

log = get_logger(__name__)

# Java: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED, DELETE_ACL_CONFIG_FAILED,
# UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED. Other requests have these codes with other meanings.
_UPDATE_FAILED: Final = 209
_DELETE_FAILED: Final = 210
_WHITE_LIST_FAILED: Final = 211


class AccountHandlers:
    """Serves requests about the account files of `rules`. For the loop's thread."""

    def __init__(self, rules: PlainRules) -> None:
        self._rules = rules

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.UPDATE_AND_CREATE_ACL_CONFIG, self._update)
        handlers.register(requests.DELETE_ACL_CONFIG, self._delete)
        handlers.register(requests.GET_BROKER_CLUSTER_ACL_INFO, self._versions)
        handlers.register(requests.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, self._set_white_list)

    async def _update(
        self, connection: Connection, request: Request[bodies.CreateAccessConfigRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        access_key = header.access_key
        try:
            changes = _changes(header)
        except ConfigError as error:
            return response(_UPDATE_FAILED, str(error))

        def edit(values: dict[str, Any]) -> None:
            accounts = values.get("accounts")
            if not isinstance(accounts, list):
                accounts = values["accounts"] = []
            for account in accounts:
                if str(account.get("accessKey")) == access_key:
                    account.update(changes)
                    return
            accounts.append(changes)

        file = self._rules.table.file_of.get(access_key)
        return await self._changed(
            file, edit, _UPDATE_FAILED, "account changed", connection, account=access_key
        )

    async def _delete(
        self, connection: Connection, request: Request[bodies.DeleteAccessConfigRequestHeader]
    ) -> RemotingCommand:
        access_key = request.header.access_key
        file = self._rules.table.file_of.get(access_key)
        if file is None:
            return response(
                _DELETE_FAILED,
                f"The accessKey[{access_key:.100}] corresponding to accessConfig has been deleted "
                "failed: no account file has it",
            )

        def edit(values: dict[str, Any]) -> None:
            values["accounts"] = [
                account
                for account in values.get("accounts") or []
                if str(account.get("accessKey")) != access_key
            ]

        return await self._changed(
            file, edit, _DELETE_FAILED, "account deleted", connection, account=access_key
        )

    async def _set_white_list(
        self,
        connection: Connection,
        request: Request[bodies.UpdateGlobalWhiteAddrsConfigRequestHeader],
    ) -> RemotingCommand:
        header = request.header
        table = self._rules.table
        file = self._rules.default_file
        if header.acl_file_full_path:
            # Compared and never opened: no request names a file that is not one of accounts already.
            known = {str(path): path for path in table.versions}
            named = known.get(header.acl_file_full_path)
            if named is None:
                return response(
                    _WHITE_LIST_FAILED,
                    f"{header.acl_file_full_path:.200} is none of the account files in force here; "
                    "leave the file out for the default one",
                )
            file = named
        addresses = _split_addresses(header.global_white_addrs)
        try:
            WhiteList(addresses)
        except ConfigError as error:
            return response(_WHITE_LIST_FAILED, str(error))

        def edit(values: dict[str, Any]) -> None:
            values["globalWhiteRemoteAddresses"] = addresses

        return await self._changed(
            file, edit, _WHITE_LIST_FAILED, "white addresses changed", connection
        )

    async def _changed(
        self,
        file: Path | None,
        edit: Callable[[dict[str, Any]], None],
        failed: int,
        what: str,
        connection: Connection,
        **about: str,
    ) -> RemotingCommand:
        try:
            await self._rules.change(file, edit)
        except ConfigError as error:
            return response(failed, f"nothing was changed: {error}")
        except OSError as error:
            return response(failed, f"the file could not be written: {error.strerror or error}")
        log.info(what, by=connection.peer, **about)
        return response(ResponseCode.SUCCESS)

    def _versions(self, _connection: Connection, _request: Request[NoHeader]) -> RemotingCommand:
        """Answer the version of the default file, and those of all files by their paths."""
        identity = self._rules.identity()
        versions = self._rules.table.versions
        by_path = {str(path): version for path, version in versions.items()}
        header = bodies.GetBrokerAclConfigResponseHeader(
            broker_addr=identity.address,
            broker_name=identity.name,
            cluster_name=identity.cluster,
            version=encode_body(versions.get(self._rules.default_file, DataVersion())).decode(),
            all_acl_file_version=encode_body(by_path).decode(),
        )
        return response(ResponseCode.SUCCESS, header=header)


def _changes(header: bodies.CreateAccessConfigRequestHeader) -> dict[str, Any]:
    """Return what a request says of an account, by the keys of the file. Raises ConfigError."""
    topic_perms, group_perms = _entries(header.topic_perms), _entries(header.group_perms)
    for key, entries in (("topicPerms", topic_perms), ("groupPerms", group_perms)):
        for entry in entries or ():
            if not is_permission(split_permission(entry, key)[1]):
                raise ConfigError(
                    f"{entry!r:.100} in {key} gives no permission; write DENY, PUB, SUB or PUB|SUB"
                )
    # Java demands the secret key of an account that it knows, too.
    CheckedAccount(
        PlainAccount(
            header.access_key,
            header.secret_key or "",
            white_remote_address=header.white_remote_address or "",
            topic_perms=tuple(topic_perms or ()),
            group_perms=tuple(group_perms or ()),
        )
    )
    changes: dict[str, Any] = {
        "accessKey": header.access_key,
        "secretKey": header.secret_key,
        "whiteRemoteAddress": header.white_remote_address,
        "admin": header.admin,
        "defaultTopicPerm": header.default_topic_perm or None,
        "defaultGroupPerm": header.default_group_perm or None,
        "topicPerms": topic_perms,
        "groupPerms": group_perms,
    }
    return {key: value for key, value in changes.items() if value is not None}


def _entries(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def _split_addresses(text: str) -> list[str]:
    """Split at commas, but not at those between braces."""
    addresses, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == "," and not depth:
            addresses.append(text[begin:at].strip())
            begin = at + 1
    return list(filter(None, [*addresses, text[begin:].strip()]))
