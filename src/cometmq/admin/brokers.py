"""A broker's configuration, state and retention (Java: DefaultMQAdminExt).

Commands of mqadmin: brokerStatus, getBrokerConfig, updateBrokerConfig, deleteExpiredCommitLog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.admin.servers import AdminClient
from cometmq.protocol import requests
from cometmq.protocol.header import NoHeader
from cometmq.runtime.config import format_properties, parse_properties

_REFUSED: Final = "refused_"


@dataclass(frozen=True, slots=True)
class NextDeletion:
    """The file of the commit log that goes next, and why it goes or stays.

    `when_ms` is the time at which it goes, as far as is known; None where nothing is.
    """

    file: str
    reason: str
    when_ms: int | None


class BrokersAdmin(AdminClient):
    """Each call names the broker by its address, `host:port`.

    Calls raise RemotingError when it does not answer, RemoteError when it refuses.
    """

    async def runtime_info(self, address: str) -> dict[str, str]:
        """What the broker tells of itself, by Java's keys and its own."""
        answer = await self._remoting.ask(
            address, requests.GET_BROKER_RUNTIME_INFO, NoHeader(), what="the runtime information"
        )
        return answer.body.table

    async def next_deletion(self, address: str) -> NextDeletion | None:
        """What `cometmq store explain` says first; None of a broker of another make, or an empty one."""
        info = await self.runtime_info(address)
        file = info.get("nextDeletedFile")
        if not file:
            return None
        when = info.get("nextDeletionTimeStamp")
        return NextDeletion(file, info["nextDeletionReason"], None if when is None else int(when))

    async def refusals(self, address: str) -> dict[str, int]:
        """How many messages the broker's store has refused since its start, by cause."""
        info = await self.runtime_info(address)
        return {
            key.removeprefix(_REFUSED): int(count)
            for key, count in info.items()
            if key.startswith(_REFUSED)
        }

    async def config(self, address: str) -> dict[str, str]:
        """Every setting in force."""
        answer = await self._remoting.ask(
            address, requests.GET_BROKER_CONFIG, NoHeader(), what="the configuration"
        )
        return parse_properties(answer.body.decode(), f"the answer of {address}")

    async def update_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of the running broker and of its configuration file: all or none."""
        await self._remoting.ask(
            address,
            requests.UPDATE_BROKER_CONFIG,
            NoHeader(),
            format_properties(changes).encode(),
            what=f"the change of {', '.join(changes)}",
        )

    async def delete_expired_files(self, address: str) -> None:
        """Let files of the commit log that have expired go soon, whatever the hour."""
        await self._remoting.ask(
            address,
            requests.DELETE_EXPIRED_COMMITLOG,
            NoHeader(),
            what="the deletion of expired files",
        )
