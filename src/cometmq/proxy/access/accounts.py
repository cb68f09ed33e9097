"""Ask brokers for users and their policies, and remember them for a while.

Users and policies live at the brokers of a cluster, where `mqadmin createUser` and its siblings put
them (Java: ProxyAuthenticationMetadataProvider, ClusterMetadataService). A change is in force here
within REMEMBER_S. A user is not served while no broker can say who it is.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cometmq.access.users.book import (
    DISABLE,
    MAX_USERNAME_LENGTH,
    MAX_USERS,
    SUBJECT_PREFIX,
    SUPER,
)
from cometmq.access.users.policies import Policies
from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError, RemoteError
from cometmq.model.route import MASTER_ID
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import AclInfo, AclRequestHeader, UserInfo, UserRequestHeader
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.request_type import RequestType
from cometmq.proxy.configuration.config import REMEMBER_S
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError
from cometmq.remoting.signing import SigningKey
from cometmq.runtime.tasks import TaskOwner

# How many names that this proxy does not know as users yet it asks brokers about in a second.
MAX_NEW_ACCOUNTS_PER_SECOND: Final = 100
# How many names are remembered of which there is no user.
_MAX_STRANGERS: Final = 1_024
_ASK_S: Final = 3.0
# How many brokers are asked before the rights of a user count as unknown.
_MOST_BROKERS: Final = 3


class Account:
    """A user as calls need it. `repr` shows no secret."""

    __slots__ = ("is_disabled", "is_super", "key", "name", "policies")

    def __init__(self, user: UserInfo, acl: AclInfo | None) -> None:
        self.name = user.username or ""
        self.key = SigningKey(user.password or "")
        self.is_super = user.user_type == SUPER
        self.is_disabled = user.user_status == DISABLE
        self.policies = Policies(acl)


class Accounts:
    """Finds users by name. For the loop's thread only."""

    def __init__(self, instance: ClientInstance, cluster: str, tasks: TaskOwner) -> None:
        self._instance = instance
        self._cluster = cluster
        self._tasks = tasks
        # With the time until which each counts.
        self._known: dict[str, tuple[float, Account]] = {}
        self._strangers: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[Account | None]] = {}
        self._masters: tuple[float, list[str]] = (0.0, [])
        self._second = self._new_in_second = 0

    @property
    def count(self) -> int:
        return len(self._known)

    async def of(self, name: str) -> Account | None:
        """Return a user, None if there is none. Raises RefusedError if that cannot be found out."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(name)
        if known is not None and known[0] > now:
            return known[1]
        if len(name) > MAX_USERNAME_LENGTH or self._strangers.get(name, 0.0) > now:
            return None
        asking = self._asking.get(name)
        if asking is None:
            if known is None:
                self._count_new(int(now))
            asking = self._asking[name] = self._tasks.spawn(
                self._find(name), "account", log_failure=False
            )
            asking.add_done_callback(lambda done: self._on_asked(name, done))
        # A caller that goes away must not end the question of the others.
        return await asyncio.shield(asking)

    # Inside

    def _count_new(self, second: int) -> None:
        if second != self._second:
            self._second, self._new_in_second = second, 0
        self._new_in_second += 1
        if self._new_in_second > MAX_NEW_ACCOUNTS_PER_SECOND:
            raise RefusedError(
                wire.TOO_MANY_REQUESTS,
                f"{self._new_in_second} users who were not known here came in a second, the limit "
                f"MAX_NEW_ACCOUNTS_PER_SECOND is {MAX_NEW_ACCOUNTS_PER_SECOND}; try again later",
                "MAX_NEW_ACCOUNTS_PER_SECOND",
            )

    def _on_asked(self, name: str, asking: asyncio.Task[Account | None]) -> None:
        self._asking.pop(name, None)
        if not asking.cancelled():
            asking.exception()  # all callers may be gone

    async def _find(self, name: str) -> Account | None:
        """Ask one broker after the other, and remember the first answer."""
        account, until = None, asyncio.get_running_loop().time() + REMEMBER_S
        faults = []
        for address in await self._some_masters(name):
            try:
                account = await self._ask(address, name)
            except CometMQError as error:
                faults.append(str(error))
            else:
                break
        else:
            self._masters = 0.0, []
            raise _unknown(name, "; ".join(faults) or "the name servers know no master")
        if account is None:
            self._known.pop(name, None)
            if len(self._strangers) >= _MAX_STRANGERS:
                self._strangers.clear()
            self._strangers[name] = until
            return None
        if name not in self._known and len(self._known) >= MAX_USERS:
            self._known.clear()
        self._known[name] = until, account
        return account

    async def _ask(self, address: str, name: str) -> Account | None:
        user_bytes = await self._body(
            address, requests.AUTH_GET_USER, UserRequestHeader(username=name), f"user {name}"
        )
        if not user_bytes:
            return None
        user = decode_body(user_bytes, UserInfo)
        if not user.password:
            raise RefusedError(
                wire.INTERNAL_SERVER_ERROR,
                f"{address} does not show the password of user {name} to this proxy; name a Super user in "
                "innerClientAuthenticationCredentials",
            )
        header = AclRequestHeader(subject=SUBJECT_PREFIX + name)
        try:
            acl_bytes = await self._body(
                address, requests.AUTH_GET_ACL, header, f"the policies of user {name}"
            )
        except RemoteError as error:
            # Java: the user was deleted just now.
            if "is not exist" not in (error.remark or ""):
                raise
            return None
        return Account(user, decode_body(acl_bytes, AclInfo) if acl_bytes else None)

    async def _body(
        self, address: str, row: RequestType[Any, Any, Any, Any], header: Any, what: str
    ) -> bytes:
        answer = await self._instance.remoting.ask(
            address, row, header, what=what, timeout_s=_ASK_S
        )
        return bytes(answer.body)

    async def _some_masters(self, name: str) -> list[str]:
        """Return the addresses of some masters of the cluster, other ones first for other names."""
        now = asyncio.get_running_loop().time()
        if self._masters[0] <= now:
            self._masters = now + REMEMBER_S, await self._all_masters(name)
        masters = self._masters[1]
        if not masters:
            return []
        begin = sum(name.encode()) % len(masters)
        return (masters[begin:] + masters[:begin])[:_MOST_BROKERS]

    async def _all_masters(self, name: str) -> list[str]:
        faults = []
        for address in self._instance.namesrv:
            try:
                answer = await self._instance.remoting.ask(
                    address,
                    requests.GET_BROKER_CLUSTER_INFO,
                    NoHeader(),
                    what="the list of brokers",
                    timeout_s=_ASK_S,
                )
            except CometMQError as error:
                faults.append(str(error))
                continue
            info = answer.body
            names = info.cluster_addr_table.get(self._cluster)
            if names is None:
                raise _unknown(
                    name,
                    f"the name server {address} knows no cluster {self._cluster}, whose brokers have the "
                    "users; set rocketMQClusterName",
                )
            found = (
                info.broker_addr_table[each].broker_addrs.get(MASTER_ID)
                for each in names
                if each in info.broker_addr_table
            )
            return sorted(filter(None, found))
        raise _unknown(name, "; ".join(faults))


def _unknown(name: str, why: str) -> RefusedError:
    return RefusedError(
        wire.PROXY_TIMEOUT,
        f"whether user {name} may do this is unknown: {why}; try again later",
    )
