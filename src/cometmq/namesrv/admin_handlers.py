"""Answer operators' requests: lists, permissions, topics, key-value and own configuration.

Java: DefaultRequestProcessor.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.logs.setup import change_log_level, check_log_is_ours
from cometmq.namesrv.config import CHANGEABLE_KEYS, CONFIG_CLASSES, NAMESRV_PROMISES, NamesrvConfig
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.route_handlers import success
from cometmq.namesrv.route_json import cluster_info_json
from cometmq.namesrv.route_table import FLAG_UNIT, FLAG_UNIT_SUB, RouteTable
from cometmq.protocol import headers, limits, requests
from cometmq.protocol.bodies.cluster import KVTable, TopicList
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.configuration.check import (
    check_changeable,
    check_update,
    decode_update,
    prepare,
)
from cometmq.runtime.configuration.config import Configuration, from_properties, to_properties
from cometmq.runtime.slices import run_slices
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import StateWriter

log = get_logger(__name__)

# How many letters of a value are logged; a value may be as long as a page.
_LOGGED_LETTERS: Final = 200


class AdminHandlers:
    """Serves the codes that change or show the whole name server."""

    def __init__(
        self,
        config: NamesrvConfig,
        table: RouteTable,
        kv_config: KvConfig,
        configuration: Configuration,
        state: StateWriter,
    ) -> None:
        self._state = state
        self._config = config
        self._table = table
        self._kv_config = kv_config
        self._configuration = configuration
        self._config_file = JsonFile(config.config_store_path, keep_permissions=True)
        # Updates take effect in the order in which they came, however long they are.
        self._update_order = asyncio.Lock()
        self._is_prepared = False

    def register(self, handlers: Handlers) -> None:
        """Take the codes of this class in `handlers`."""
        handlers.register(requests.GET_BROKER_CLUSTER_INFO, self._cluster_info)
        handlers.register(requests.WIPE_WRITE_PERM_OF_BROKER, self._wipe_write_perm)
        handlers.register(requests.ADD_WRITE_PERM_OF_BROKER, self._add_write_perm)
        handlers.register(requests.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self._all_topics)
        handlers.register(requests.GET_TOPICS_BY_CLUSTER, self._topics_of_cluster)
        handlers.register(requests.GET_SYSTEM_TOPIC_LIST_FROM_NS, self._system_topics)
        handlers.register(requests.GET_UNIT_TOPIC_LIST, self._unit_topics)
        handlers.register(requests.GET_HAS_UNIT_SUB_TOPIC_LIST, self._unit_sub_topics)
        handlers.register(requests.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self._unit_sub_ununit_topics)
        handlers.register(requests.DELETE_TOPIC_IN_NAMESRV, self._delete_topic)
        handlers.register(requests.PUT_KV_CONFIG, self._put_kv)
        handlers.register(requests.GET_KV_CONFIG, self._get_kv)
        handlers.register(requests.DELETE_KV_CONFIG, self._delete_kv)
        handlers.register(requests.GET_KVLIST_BY_NAMESPACE, self._list_kv)
        handlers.register(requests.UPDATE_NAMESRV_CONFIG, self._update_config)
        handlers.register(requests.GET_NAMESRV_CONFIG, self._get_config)

    def _cluster_info(
        self, _connection: Connection, _request: Request[NoHeader]
    ) -> RemotingCommand:
        return success(cluster_info_json(self._table.cluster_info()))

    def _wipe_write_perm(
        self,
        connection: Connection,
        request: Request[headers.WipeWritePermOfBrokerRequestHeader],
    ) -> RemotingCommand:
        name = request.header.broker_name
        count = self._table.wipe_write_perm(name)
        log.info("write permission wiped", broker=name, topics=count, by=connection.peer)
        return response(
            ResponseCode.SUCCESS,
            header=headers.WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count),
        )

    def _add_write_perm(
        self, connection: Connection, request: Request[headers.AddWritePermOfBrokerRequestHeader]
    ) -> RemotingCommand:
        name = request.header.broker_name
        count = self._table.add_write_perm(name)
        log.info("write permission added", broker=name, topics=count, by=connection.peer)
        return response(
            ResponseCode.SUCCESS,
            header=headers.AddWritePermOfBrokerResponseHeader(add_topic_count=count),
        )

    # Topics

    def _topic_list(
        self, topics: list[str], *, enabled: bool, address: str | None = None
    ) -> RemotingCommand:
        if not enabled:
            return response(ResponseCode.SYSTEM_ERROR, "disable")
        return success(encode_body(TopicList(broker_addr=address, topic_list=topics)))

    def _all_topics(self, _connection: Connection, _request: Request[NoHeader]) -> RemotingCommand:
        return self._topic_list(self._table.topics(), enabled=self._config.enable_all_topic_list)

    def _topics_of_cluster(
        self, _connection: Connection, request: Request[headers.GetTopicsByClusterRequestHeader]
    ) -> RemotingCommand:
        topics = self._table.topics_of_cluster(request.header.cluster)
        return self._topic_list(topics, enabled=self._config.enable_topic_list)

    def _system_topics(
        self, _connection: Connection, _request: Request[NoHeader]
    ) -> RemotingCommand:
        topics = self._table.system_topics()
        return self._topic_list(topics, enabled=True, address=self._table.some_address())

    def _unit_topics(self, _connection: Connection, _request: Request[NoHeader]) -> RemotingCommand:
        topics = self._table.topics_by_flag(required=FLAG_UNIT)
        return self._topic_list(topics, enabled=self._config.enable_topic_list)

    def _unit_sub_topics(
        self, _connection: Connection, _request: Request[NoHeader]
    ) -> RemotingCommand:
        topics = self._table.topics_by_flag(required=FLAG_UNIT_SUB)
        return self._topic_list(topics, enabled=self._config.enable_topic_list)

    def _unit_sub_ununit_topics(
        self, _connection: Connection, _request: Request[NoHeader]
    ) -> RemotingCommand:
        topics = self._table.topics_by_flag(required=FLAG_UNIT_SUB, excluded=FLAG_UNIT)
        return self._topic_list(topics, enabled=self._config.enable_topic_list)

    def _delete_topic(
        self,
        connection: Connection,
        request: Request[headers.DeleteTopicFromNamesrvRequestHeader],
    ) -> RemotingCommand:
        header = request.header
        if self._table.delete_topic(header.topic, header.cluster_name):
            log.info(
                "topic deleted",
                topic=header.topic,
                cluster=header.cluster_name or "every cluster",
                by=connection.peer,
            )
        return success()

    # Key-value configuration

    async def _put_kv(
        self, connection: Connection, request: Request[headers.PutKVConfigRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        limits.check_kv(header.namespace, header.key, header.value)
        try:
            await self._kv_config.put(header.namespace, header.key, header.value)
        except OSError as error:
            raise _not_saved(self._config.kv_config_path, error) from error
        log.info(
            "key-value entry set",
            namespace=header.namespace,
            key=header.key,
            value=header.value[:_LOGGED_LETTERS],
            by=connection.peer,
        )
        return success()

    def _get_kv(
        self, _connection: Connection, request: Request[headers.GetKVConfigRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            return response(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return response(ResponseCode.SUCCESS, header=headers.GetKVConfigResponseHeader(value=value))

    async def _delete_kv(
        self, connection: Connection, request: Request[headers.DeleteKVConfigRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        try:
            await self._kv_config.delete(header.namespace, header.key)
        except OSError as error:
            raise _not_saved(self._config.kv_config_path, error) from error
        log.info(
            "key-value entry deleted",
            namespace=header.namespace,
            key=header.key,
            by=connection.peer,
        )
        return success()

    def _list_kv(
        self, _connection: Connection, request: Request[headers.GetKVListByNamespaceRequestHeader]
    ) -> RemotingCommand:
        namespace = request.header.namespace
        entries = self._kv_config.namespace(namespace)
        if entries is None:
            return response(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return success(encode_body(KVTable(entries)))

    # Own configuration

    async def _update_config(
        self, connection: Connection, request: Request[NoHeader]
    ) -> RemotingCommand:
        if not request.body:
            return success()
        async with self._update_order:
            if not self._is_prepared:
                await asyncio.get_running_loop().run_in_executor(None, prepare)
                self._is_prepared = True
            refusal = await self._change_config(request.body, connection.peer)
        if refusal is not None:
            return refusal
        try:
            await self._state.save(self._config_file, self._configuration.text_to_save)
        except OSError as error:
            raise _not_saved(self._config.config_store_path, error) from error
        return success()

    async def _change_config(self, body: bytes, peer: str) -> RemotingCommand | None:
        """Change the configuration as a body says, or return the answer that refuses it."""
        source = f"the update from {peer}"
        changes: dict[str, str] = {}
        await run_slices(decode_update(body, source, changes))
        if self._config.refused_keys() & changes.keys():
            return response(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        await run_slices(
            check_update(
                changes,
                CONFIG_CLASSES,
                server="name server",
                source=source,
                promises=NAMESRV_PROMISES,
                given=self._configuration.properties(),
            )
        )
        changes = check_changeable(
            changes,
            self._configuration.shown(),
            CHANGEABLE_KEYS,
            server="name server",
            source=source,
        )
        # The values of the class may have to fit together, so they are checked together.
        from_properties(NamesrvConfig, {**to_properties(self._config), **changes}, source)
        if changes.get("logLevel", self._config.log_level).strip() != self._config.log_level:
            check_log_is_ours()
        changed = self._configuration.update(changes, source)
        if "logLevel" in changed:
            change_log_level(changed["logLevel"])
        log.info("configuration updated", changed=changed, by=peer)
        return None

    def _get_config(self, _connection: Connection, _request: Request[NoHeader]) -> RemotingCommand:
        return success(self._configuration.shown_text())


def _not_saved(path: object, error: OSError) -> CometMQError:
    return CometMQError(
        f"the change is in force but {path} could not be written: {error.strerror or error}; that is "
        "tried again until it can"
    )
