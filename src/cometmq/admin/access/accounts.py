"""Manage the accounts of ACL 1.0, the access control of Java's brokers of 4.x.

Commands of mqadmin: updateAclConfig, deleteAclConfig, clusterAclConfigVersion,
updateGlobalWhiteAddr.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cometmq.admin.room import Room
from cometmq.admin.servers import again
from cometmq.errors import IllegalArgumentError, RemoteError, RequestTimeoutError
from cometmq.model.topic import DataVersion
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.header import HeaderT, NoHeader
from cometmq.protocol.request_type import RequestType

PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB", "ANY")
_MIN_KEY_LENGTH: Final = 7
# Java: UPDATE_AND_CREATE_ACL_CONFIG_FAILED and its like. Other requests have these codes, too, with
# other meanings.
_FAILED: Final = (209, 210, 211)
_ENABLE: Final = "a Java broker manages accounts only with aclEnable=true in its configuration"


@dataclass(frozen=True, slots=True)
class AccountFiles:
    """Holds the version of a broker's default account file; `versions` has those of all files by
    path, if the broker reports them.
    """

    cluster: str
    broker_name: str
    address: str
    version: DataVersion
    versions: Mapping[str, DataVersion]


class Accounts(Room):
    """Manages accounts at the masters and slaves of a cluster, or at one broker."""

    async def put_account(
        self,
        access_key: str,
        secret_key: str,
        *,
        admin: bool = False,
        white_address: str | None = None,
        default_topic_permission: str | None = None,
        default_group_permission: str | None = None,
        topic_permissions: Mapping[str, str] | None = None,
        group_permissions: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make an account of ACL 1.0, or change the given fields of one; return the addresses.

        A permission is DENY, PUB, SUB, PUB|SUB or ANY. Requests from `white_address` need no
        signature.
        """
        for name, key in (("access_key", access_key), ("secret_key", secret_key)):
            # Java's own refusal would show the secret.
            if not isinstance(key, str) or len(key.strip()) < _MIN_KEY_LENGTH:
                raise IllegalArgumentError(
                    f"{name} is too short for ACL 1.0; give {_MIN_KEY_LENGTH} characters or more"
                )
        header = CreateAccessConfigRequestHeader(
            access_key=access_key,
            admin=admin,
            default_group_perm=_permission(default_group_permission),
            default_topic_perm=_permission(default_topic_permission),
            group_perms=_permissions(group_permissions),
            secret_key=secret_key,
            topic_perms=_permissions(topic_permissions),
            white_remote_address=white_address,
        )
        return await self._change_accounts(
            requests.UPDATE_AND_CREATE_ACL_CONFIG,
            header,
            f"the change of account {access_key}",
            cluster,
            broker,
        )

    async def delete_account(
        self, access_key: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete an account of ACL 1.0; return the brokers' addresses."""
        return await self._change_accounts(
            requests.DELETE_ACL_CONFIG,
            DeleteAccessConfigRequestHeader(access_key=access_key),
            f"the deletion of account {access_key}",
            cluster,
            broker,
        )

    async def set_white_addresses(
        self,
        addresses: Iterable[str],
        *,
        file: str = "",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Set the addresses that need no signature (ACL 1.0); return the brokers' addresses.

        `file` is the path of an account file at the brokers, by default conf/plain_acl.yml.
        """
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(
            acl_file_full_path=file, global_white_addrs=",".join(addresses)
        )
        return await self._change_accounts(
            requests.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            header,
            "the change of the white addresses",
            cluster,
            broker,
        )

    async def account_files(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, AccountFiles]:
        """Return which account files each broker has, and their versions (ACL 1.0)."""
        what = "the versions of the account files"

        async def ask(address: str) -> AccountFiles:
            try:
                answer = await self._servers.ask(
                    address, requests.GET_BROKER_CLUSTER_ACL_INFO, NoHeader(), what=what
                )
            except RequestTimeoutError as error:
                raise again(error, f"{error}; {_ENABLE}, and does not answer without it") from error
            header = answer.header
            text = header.all_acl_file_version or "{}"
            return AccountFiles(
                header.cluster_name,
                header.broker_name,
                header.broker_addr,
                decode_body(header.version.encode(), DataVersion),
                decode_body(text.encode(), dict[str, DataVersion]),
            )

        return await self._at_brokers(ask, what, cluster=cluster, broker=broker, slaves=True)

    # Inside

    async def _change_accounts(
        self,
        request_type: RequestType[HeaderT, Any, Any, Any],
        header: HeaderT,
        what: str,
        cluster: str | None,
        broker: str | None,
    ) -> list[str]:
        async def change(address: str) -> None:
            answer = await self._servers.ask(address, request_type, header, what=what, also=_FAILED)
            if answer.code in _FAILED:
                remark = answer.command.remark
                raise RemoteError(
                    f"{what} failed at {address}: {remark or 'it has no accounts'}; {_ENABLE}, and "
                    "its log says more",
                    code=answer.code,
                    remark=remark,
                    address=address,
                )

        return list(
            await self._change_at(change, what, cluster=cluster, broker=broker, slaves=True)
        )


def _permission(text: str | None) -> str | None:
    # A broker would take an unknown permission for DENY.
    if text is not None and text not in PERMISSIONS:
        raise IllegalArgumentError(
            f"{text!r:.80} is no permission; give one of {', '.join(PERMISSIONS)}"
        )
    return text


def _permissions(by_name: Mapping[str, str] | None) -> str | None:
    if not by_name:
        return None
    for name, text in by_name.items():
        if not name or set(name) & set(",="):
            raise IllegalArgumentError(f"{name!r:.80} is no name of a topic or group")
        _permission(text)
    return ",".join(f"{name}={text}" for name, text in by_name.items())
