"""Manages what only Java's brokers have: cold data, read-ahead, slaves that copy, RocksDB.

Commands of mqadmin: getColdDataFlowCtrInfo, updateColdDataFlowCtrGroupConfig,
removeColdDataFlowCtrGroupConfig, setCommitLogReadAheadMode, resetMasterFlushOffset,
rocksDBConfigToJson, exportPopRecord.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cometmq.admin.room import Room
from cometmq.errors import IllegalArgumentError
from cometmq.model.names import check_group
from cometmq.protocol import java_requests, requests
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    ExportRocksDBConfigToJsonRequestHeader,
    ResetMasterFlushOffsetHeader,
    SetCommitLogReadModeRequestHeader,
)
from cometmq.runtime.configuration.config import format_properties

# Java: LibC.MADV_NORMAL and MADV_RANDOM.
_READ_AHEAD: Final = {True: 0, False: 1}
_EXPORT_TIMEOUT_S: Final = 30.0
ROCKSDB_CONFIGS: Final = ("topics", "subscriptionGroups", "consumerOffsets")


class JavaBrokers(Room):
    """Asks brokers for what CometMQ's do otherwise. They refuse these calls, and say what to do.

    What changes brokers returns their addresses.
    """

    async def cold_data_thresholds(
        self, *, cluster: str | None = None, broker: str | None = None, slaves: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return what each broker tells of reads of cold data: `configTable` has the groups'
        thresholds, `runtimeTable` what they have read. Brokers before 5.2 do not tell.
        """
        what = "the thresholds of cold data"

        async def ask(address: str) -> dict[str, Any]:
            answer = await self._servers.ask(
                address, java_requests.GET_COLD_DATA_FLOW_CTR_INFO, NoHeader(), what=what
            )
            return answer.body

        return await self._at_brokers(ask, what, cluster=cluster, broker=broker, slaves=slaves)

    async def set_cold_data_threshold(
        self,
        group: str,
        bytes_per_s: int,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Bound how many bytes of cold data a group may read."""
        check_group(group)
        if type(bytes_per_s) is not int or bytes_per_s < 0:
            raise IllegalArgumentError(
                f"bytes_per_s is {bytes_per_s!r:.80}; give a number of bytes, 0 or more"
            )
        body = format_properties({group: str(bytes_per_s)}).encode()
        what = f"the threshold of group {group}"

        async def ask(address: str) -> None:
            await self._servers.ask(
                address,
                java_requests.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
                NoHeader(),
                body,
                what=what,
            )

        return list(await self._change_at(ask, what, cluster=cluster, broker=broker))

    async def remove_cold_data_threshold(
        self, group: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have a group's reads of cold data bounded no longer by a threshold of its own."""
        check_group(group)
        what = f"the removal of the threshold of group {group}"

        async def ask(address: str) -> None:
            await self._servers.ask(
                address,
                java_requests.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
                NoHeader(),
                group.encode(),
                what=what,
            )

        return list(await self._change_at(ask, what, cluster=cluster, broker=broker))

    async def set_read_ahead(
        self, enabled: bool, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have brokers read the commit log ahead, or not."""
        header = SetCommitLogReadModeRequestHeader(mode=_READ_AHEAD[bool(enabled)])
        what = "the read-ahead of the commit log"

        async def ask(address: str) -> None:
            await self._servers.ask(
                address, java_requests.SET_COMMITLOG_READ_MODE, header, what=what
            )

        return list(await self._change_at(ask, what, cluster=cluster, broker=broker))

    async def reset_master_flush_offset(self, offset: int, *, broker: str) -> list[str]:
        """Tell a slave up to where its master has flushed the log; a master ignores it."""
        if type(offset) is not int or offset < 0:
            raise IllegalArgumentError(
                f"offset is {offset!r:.80}; give a place in the commit log, 0 or more"
            )
        header = ResetMasterFlushOffsetHeader(master_flush_offset=offset)
        what = f"the reset of the master's flush offset to {offset}"

        async def ask(address: str) -> None:
            await self._servers.ask(address, requests.RESET_MASTER_FLUSH_OFFSET, header, what=what)

        return list(await self._change_at(ask, what, cluster=None, broker=broker))

    async def export_rocksdb_config(
        self,
        kinds: Iterable[str] = ROCKSDB_CONFIGS,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Have brokers write what they keep in RocksDB to JSON files beside it.

        `kinds` are some of "topics", "subscriptionGroups" and "consumerOffsets". Brokers that keep
        none of them in RocksDB write nothing.
        """
        chosen = list(kinds)
        for kind in chosen:
            if kind not in ROCKSDB_CONFIGS:
                raise IllegalArgumentError(
                    f"{kind!r:.80} is no kind of configuration; give some of "
                    f"{', '.join(ROCKSDB_CONFIGS)}"
                )
        header = ExportRocksDBConfigToJsonRequestHeader(config_type=";".join(chosen))
        what = "the export of what is in RocksDB"

        async def ask(address: str) -> None:
            await self._servers.ask(
                address, java_requests.EXPORT_ROCKSDB_CONFIG_TO_JSON, header, what=what
            )

        return list(await self._change_at(ask, what, cluster=cluster, broker=broker))

    async def export_pop_records(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have brokers, also slaves, move their records of pop consumers from RocksDB to files."""
        what = "the export of records of pop consumers"

        async def ask(address: str) -> None:
            await self._servers.ask(
                address,
                java_requests.POP_ROLLBACK,
                NoHeader(),
                what=what,
                timeout_s=max(_EXPORT_TIMEOUT_S, self._servers.timeout_s),
            )

        return list(await self._change_at(ask, what, cluster=cluster, broker=broker, slaves=True))
