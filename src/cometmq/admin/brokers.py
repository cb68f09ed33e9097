"""Reads and changes the configuration, state and retention of a broker.

Java: DefaultMQAdminExt. Commands of mqadmin: brokerStatus, getBrokerConfig, updateBrokerConfig, deleteExpiredCommitLog.
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
    """Names the commit-log file that the broker deletes next, and why it deletes or keeps it.

    `when_ms` is the expected time of the deletion in ms since the epoch, None if it is unknown.
    """

    file: str
    reason: str
    when_ms: int | None


class BrokersAdmin(AdminClient):
    """Asks and manages brokers. Each call takes the address of the broker as `host:port`.

    A call raises RemotingError when the broker does not answer, RemoteError when it refuses.
    """

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return the state that the broker reports, under Java's keys and its own."""
        answer = await self._remoting.ask(
            address, requests.GET_BROKER_RUNTIME_INFO, NoHeader(), what="the runtime information"
        )
        return answer.body.table

    async def next_deletion(self, address: str) -> NextDeletion | None:
        """Return what `cometmq store explain` says first.

        Return None if the broker has no files or is not a CometMQ broker.
        """
        info = await self.runtime_info(address)
        file = info.get("nextDeletedFile")
        if not file:
            return None
        when = info.get("nextDeletionTimeStamp")
        return NextDeletion(file, info["nextDeletionReason"], None if when is None else int(when))

    async def refusals(self, address: str) -> dict[str, int]:
        """Return how many messages the broker's store has refused since its start, by cause."""
        info = await self.runtime_info(address)
        return {
            key.removeprefix(_REFUSED): int(count)
            for key, count in info.items()
            if key.startswith(_REFUSED)
        }

    async def config(self, address: str) -> dict[str, str]:
        """Return all settings that are in force."""
        answer = await self._remoting.ask(
            address, requests.GET_BROKER_CONFIG, NoHeader(), what="the configuration"
        )
        return parse_properties(answer.body.decode(), f"the answer of {address}")

    async def update_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of the running broker and in its configuration file, all or none."""
        await self._remoting.ask(
            address,
            requests.UPDATE_BROKER_CONFIG,
            NoHeader(),
            format_properties(changes).encode(),
            what=f"the change of {', '.join(changes)}",
        )

    async def delete_expired_files(self, address: str) -> None:
        """Have the broker delete expired commit-log files soon, at any hour of the day."""
        await self._remoting.ask(
            address,
            requests.DELETE_EXPIRED_COMMITLOG,
            NoHeader(),
            what="the deletion of expired files",
        )
