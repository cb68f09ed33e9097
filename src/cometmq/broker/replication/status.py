"""Show operators which slaves copy a broker, or which master it copies: codes 907 and 908 (Java:
DefaultHAService).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cometmq.broker.parts import Parts
from cometmq.logs.loggers import get_logger
from cometmq.protocol import requests
from cometmq.protocol.bodies.overview import (
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import ResetMasterFlushOffsetHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.replication.master import ReplicationMaster
from cometmq.replication.slave import ReplicationSlave

if TYPE_CHECKING:
    from cometmq.broker.replication.service import Replication


log = get_logger(__name__)


class StatusHandlers:
    """Serves questions about the replication. For the loop's thread only."""

    def __init__(self, parts: Parts, replication: Replication) -> None:
        self._store = parts.store
        self._replication = replication

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.GET_BROKER_HA_STATUS, self.ha_status)
        handlers.register(requests.RESET_MASTER_FLUSH_OFFSET, self.reset_master_flush)

    def ha_status(self, _connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return the slaves of a master, or how far a slave is."""
        master, slave = self._replication.master, self._replication.slave
        info = self._of_slave(slave) if slave is not None else self._of_master(master)
        return response(ResponseCode.SUCCESS, body=encode_body(info))

    def reset_master_flush(
        self, connection: Connection, call: Request[ResetMasterFlushOffsetHeader]
    ) -> RemotingCommand:
        """Answer with success and change nothing, as Java's masters do; a slave knows the offset
        from its log.
        """
        log.info(
            "the master's flush offset is known from the log, so a reset changes nothing",
            peer=connection.peer,
            offset=call.header.master_flush_offset,
        )
        return response(ResponseCode.SUCCESS)

    def _of_master(self, master: ReplicationMaster | None) -> HARuntimeInfo:
        end = self._store.commit_log.end
        if master is None:
            return HARuntimeInfo(master=True, master_commit_log_max_offset=end)
        in_step = master.slaves_in_step()
        now_s = asyncio.get_running_loop().time()
        return HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=len(in_step),
            ha_connection_info=[
                HAConnectionRuntimeInfo(
                    addr=slave.peer,
                    diff=end - slave.acknowledged,
                    in_sync=slave in in_step,
                    slave_ack_offset=slave.acknowledged,
                    # Java calls it so, and means what is sent next.
                    transfer_from_where=slave.position,
                    transferred_byte_in_second=slave.speed.bytes_per_s(now_s),
                )
                for slave in master.slaves
            ],
        )

    def _of_slave(self, slave: ReplicationSlave) -> HARuntimeInfo:
        return HARuntimeInfo(
            master=False,
            ha_client_runtime_info=HAClientRuntimeInfo(
                activated=slave.is_connected,
                last_read_timestamp=slave.last_read_ms,
                last_write_timestamp=slave.last_write_ms,
                master_addr=slave.master_address,
                max_offset=self._store.commit_log.end,
                transferred_byte_in_second=slave.speed.bytes_per_s(
                    asyncio.get_running_loop().time()
                ),
            ),
        )
