"""List clusters and brokers; read and change the configuration, state and retention of brokers.

Commands of mqadmin: clusterList, brokerStatus, getBrokerConfig, updateBrokerConfig, wipeWritePerm,
addWritePerm, cleanExpiredCQ, cleanUnusedTopic, deleteExpiredCommitLog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cometmq.admin.brokers.java import JavaBrokers
from cometmq.admin.brokers.reports import BrokerReports
from cometmq.admin.messages.reading import settings_of
from cometmq.admin.servers import BrokerAddress
from cometmq.errors import CometMQError
from cometmq.protocol import requests
from cometmq.protocol.header import HeaderT, NoHeader
from cometmq.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from cometmq.protocol.request_type import RequestType
from cometmq.runtime.configuration.config import format_properties

_REFUSED: Final = "refused_"


@dataclass(frozen=True, slots=True)
class NextDeletion:
    """Names the commit-log file that the broker deletes next, and why it deletes or keeps it.

    `when_ms` is the expected time of the deletion in ms since the epoch, None if it is unknown.
    """

    file: str
    reason: str
    when_ms: int | None


@dataclass(frozen=True, slots=True)
class FileDeletion:
    """Says when a broker can delete a file of its commit log, in ms since the epoch.

    None stands for a file that stays, or whose time nobody knows. `base_offset` is the file's first.
    """

    base_offset: int
    when_ms: int | None

    @property
    def name(self) -> str:
        return f"{self.base_offset:020d}"


class Brokers(BrokerReports, JavaBrokers):
    """Asks and manages brokers. A call goes to every master of `cluster`, with `slaves` to its
    slaves too, or to one `broker`, and returns results by address.
    """

    async def addresses(
        self, *, cluster: str | None = None, slaves: bool = True
    ) -> list[BrokerAddress]:
        """Return the brokers that are registered, sorted by cluster, name and id."""
        if cluster is not None:
            return await self._servers.brokers(cluster=cluster, slaves=slaves)
        info = await self._servers.cluster_info()
        return [
            at
            for name in sorted(info.cluster_addr_table)
            for at in await self._servers.brokers(cluster=name, slaves=slaves)
        ]

    async def missing(
        self, *, cluster: str | None = None, topic: str | None = None
    ) -> dict[str, CometMQError]:
        """Return, by broker name, why expected brokers of a cluster, of a topic, or of all clusters
        cannot be asked. Either a name server of CometMQ lost the broker within the last day without
        an unregistration, or only slaves of the name are registered.
        """
        if topic is None:
            return await self._servers.missing(cluster=cluster)
        route = await self._servers.route(topic, cluster=cluster)
        return self._servers.masters_and_missing(route)[1]

    async def clusters(self) -> list[str]:
        """Return the names of the clusters that have a broker."""
        return sorted((await self._servers.cluster_info()).cluster_addr_table)

    async def runtime_info(
        self, *, cluster: str | None = None, broker: str | None = None, slaves: bool = False
    ) -> dict[str, dict[str, str]]:
        """Return the state that each broker reports, under Java's keys and its own."""
        return await self._ask_brokers(
            requests.GET_BROKER_RUNTIME_INFO,
            NoHeader(),
            what="the runtime information",
            read=lambda answer: answer.body.table,
            cluster=cluster,
            broker=broker,
            slaves=slaves,
        )

    async def next_deletions(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, NextDeletion | None]:
        """Return which file each broker deletes next, as `cometmq store explain` says it.

        It is None for a broker that has no files or is not a CometMQ broker.
        """
        infos = await self.runtime_info(cluster=cluster, broker=broker)
        return {address: next_deletion(info) for address, info in infos.items()}

    async def refusals(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, dict[str, int]]:
        """Return how many messages each broker's store has refused since its start, by cause."""
        infos = await self.runtime_info(cluster=cluster, broker=broker)
        return {
            address: {
                key.removeprefix(_REFUSED): int(count)
                for key, count in info.items()
                if key.startswith(_REFUSED)
            }
            for address, info in infos.items()
        }

    async def config(
        self, *, cluster: str | None = None, broker: str | None = None, slaves: bool = False
    ) -> dict[str, dict[str, str]]:
        """Return all settings that are in force at each broker."""

        async def ask(address: str) -> dict[str, str]:
            answer = await self._servers.ask(
                address, requests.GET_BROKER_CONFIG, NoHeader(), what="the configuration"
            )
            return settings_of(answer.body, address)

        return await self._at_brokers(
            ask, "the configuration", cluster=cluster, broker=broker, slaves=slaves
        )

    async def update_config(
        self,
        changes: Mapping[str, str],
        *,
        cluster: str | None = None,
        broker: str | None = None,
        slaves: bool = False,
    ) -> list[str]:
        """Change settings of running brokers and in their configuration files.

        A CometMQ broker makes all the changes or none. Return the brokers' addresses.
        """
        body = format_properties(changes).encode()
        what = f"the change of {', '.join(changes)}"
        return await self._change_brokers(
            requests.UPDATE_BROKER_CONFIG,
            NoHeader(),
            body,
            what=what,
            cluster=cluster,
            broker=broker,
            slaves=slaves,
        )

    # Permission to write, which name servers hold

    async def wipe_write_permission(self, broker_name: str) -> dict[str, int]:
        """Keep producers from choosing a broker; return the changed topics by name server.

        The broker's next registration of a change brings the permission back, as in Java.
        """
        return await self._permit(
            broker_name,
            requests.WIPE_WRITE_PERM_OF_BROKER,
            WipeWritePermOfBrokerRequestHeader(broker_name),
            "wipe_topic_count",
        )

    async def add_write_permission(self, broker_name: str) -> dict[str, int]:
        """Let producers choose a broker again; return the changed topics by name server."""
        return await self._permit(
            broker_name,
            requests.ADD_WRITE_PERM_OF_BROKER,
            AddWritePermOfBrokerRequestHeader(broker_name),
            "add_topic_count",
        )

    # Clean-ups. Each returns the addresses of the brokers that did it.

    async def delete_expired_files(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have brokers delete expired commit-log files soon, at any hour of the day."""
        return await self._clean(
            requests.DELETE_EXPIRED_COMMITLOG, cluster, broker, "the deletion of expired files"
        )

    async def clean_expired_queues(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have brokers delete files of queues whose messages have left the commit log."""
        return await self._clean(
            requests.CLEAN_EXPIRED_CONSUMEQUEUE, cluster, broker, "cleaning expired queues"
        )

    async def clean_unused_topics(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have brokers delete the queues of topics that they do not have any more."""
        return await self._clean(
            requests.CLEAN_UNUSED_TOPIC, cluster, broker, "cleaning unused topics"
        )

    # Inside

    async def _clean(
        self,
        request_type: RequestType[NoHeader, None, NoHeader, None],
        cluster: str | None,
        broker: str | None,
        what: str,
    ) -> list[str]:
        return await self._change_brokers(
            request_type, NoHeader(), what=what, cluster=cluster, broker=broker
        )

    async def _permit(
        self,
        broker_name: str,
        request_type: RequestType[HeaderT, Any, Any, Any],
        header: HeaderT,
        count: str,
    ) -> dict[str, int]:
        what = f"the change of the write permission of {broker_name}"
        await self._servers.brokers(broker=broker_name)  # name servers take any name

        return await self._servers.ask_each(
            self._servers.name_servers,
            request_type,
            header,
            what=what,
            read=lambda answer: int(getattr(answer.header, count)),
        )


def next_deletion(info: Mapping[str, str]) -> NextDeletion | None:
    """Return what the run-time information of a broker says of its next deletion."""
    file = info.get("nextDeletedFile")
    if not file:
        return None
    when = info.get("nextDeletionTimeStamp")
    return NextDeletion(file, info["nextDeletionReason"], None if when is None else int(when))


def file_deletions(info: Mapping[str, str]) -> list[FileDeletion] | None:
    """Return what the run-time information of a broker says of its oldest files.

    None for a broker that does not report them, such as Java's.
    """
    reported = info.get("fileDeletions")
    if reported is None:
        return None
    pairs = (pair.partition(":") for pair in reported.split())
    return [FileDeletion(int(base), int(when) if when else None) for base, _, when in pairs]
