"""Manage features that only Java's brokers have: cold data, read-ahead, slaves that copy, RocksDB.

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
    """Makes calls that only Java's brokers answer. CometMQ's refuse them, and say what to do
    instead.

    Calls that change brokers return the brokers' addresses.
    """

    async def cold_data_thresholds(
        self, *, cluster: str | None = None, broker: str | None = None, slaves: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return what each broker reports of reads of cold data: `configTable` has the groups'
        thresholds, `runtimeTable` what they have read. Brokers before 5.2 have no such report.
        """
        what = "the thresholds of cold data"
        return await self._ask_brokers(
            java_requests.GET_COLD_DATA_FLOW_CTR_INFO,
            NoHeader(),
            what=what,
            read=lambda answer: answer.body,
            cluster=cluster,
            broker=broker,
            slaves=slaves,
        )

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
        return await self._change_brokers(
            java_requests.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            NoHeader(),
            body,
            what=what,
            cluster=cluster,
            broker=broker,
        )

    async def remove_cold_data_threshold(
        self, group: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Remove a group's own threshold for reads of cold data."""
        check_group(group)
        what = f"the removal of the threshold of group {group}"
        return await self._change_brokers(
            java_requests.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            NoHeader(),
            group.encode(),
            what=what,
            cluster=cluster,
            broker=broker,
        )

    async def set_read_ahead(
        self, enabled: bool, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have brokers read the commit log ahead, or not."""
        header = SetCommitLogReadModeRequestHeader(mode=_READ_AHEAD[bool(enabled)])
        what = "the read-ahead of the commit log"
        return await self._change_brokers(
            java_requests.SET_COMMITLOG_READ_MODE, header, what=what, cluster=cluster, broker=broker
        )

    async def reset_master_flush_offset(self, offset: int, *, broker: str) -> list[str]:
        """Set the offset up to which a slave regards its master's log as flushed; a master ignores
        it.
        """
        if type(offset) is not int or offset < 0:
            raise IllegalArgumentError(
                f"offset is {offset!r:.80}; give a place in the commit log, 0 or more"
            )
        header = ResetMasterFlushOffsetHeader(master_flush_offset=offset)
        what = f"the reset of the master's flush offset to {offset}"
        return await self._change_brokers(
            requests.RESET_MASTER_FLUSH_OFFSET, header, what=what, cluster=None, broker=broker
        )

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
        return await self._change_brokers(
            java_requests.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            header,
            what=what,
            cluster=cluster,
            broker=broker,
        )

    async def export_pop_records(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have brokers, also slaves, move their records of pop consumers from RocksDB to files."""
        what = "the export of records of pop consumers"
        return await self._change_brokers(
            java_requests.POP_ROLLBACK,
            NoHeader(),
            what=what,
            timeout_s=max(_EXPORT_TIMEOUT_S, self._servers.timeout_s),
            cluster=cluster,
            broker=broker,
            slaves=True,
        )
