"""Show and change the broker's configuration while it runs: codes 26 and 25.

Java: AdminBrokerProcessor, Configuration. Java accepts any key, whether or not anything reads it
again. Here a key that would change nothing before a restart is refused with that reason.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.broker.config import BROKER_PROMISES, CONFIG_CLASSES
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.logs.setup import change_log_level, check_log_is_ours
from cometmq.model.topic import DataVersion
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.replication import config as replication_config
from cometmq.runtime.configuration.check import (
    check_changeable,
    check_update,
    decode_update,
    prepare,
)
from cometmq.runtime.configuration.config import (
    Configuration,
    change_properties,
    from_properties,
    to_properties,
)
from cometmq.runtime.slices import run_slices
from cometmq.runtime.state_files.files import SYSTEM_FILES
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.store import config as store_config

log = get_logger(__name__)

# Keys of BrokerConfig that are read each time they matter, so that a change takes effect at once.
LIVE_KEYS: Final = frozenset(
    {
        "appendTopicForTimerDeleteKey",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "channelExpiredTimeout",
        "compressedRegister",
        "defaultMessageRequestMode",
        "defaultPopShareQueueNum",
        "enablePropertyFilter",
        "enableSingleTopicRegister",
        "filterSupportRetry",
        "flushConsumerOffsetInterval",
        "flushDelayOffsetInterval",
        "litePullMessageEnable",
        "logLevel",
        "initPopOffsetByCheckMsgInMem",
        "longPollingEnable",
        "maxConsumerOffsets",
        "maxGroups",
        "maxGroupsMadePerSecond",
        "maxConnections",
        "maxConnectionsPerAddress",
        "maxHeldPulls",
        "maxHeldPullsPerConnection",
        "maxQueues",
        "maxTopics",
        "maxTopicsMadePerSecond",
        "maxUnresolvedTransactions",
        "metricsMaxHistograms",
        "metricsMaxPairs",
        "metricsMaxQueues",
        "metricsMaxTopics",
        "notifyConsumerIdsChangedEnable",
        "popFromRetryProbability",
        "popFromRetryProbabilityForPriority",
        "popPollingSize",
        "popResponseReturnActualRetryTopic",
        "priorityOrderAsc",
        "recallMessageEnable",
        "registerBrokerTimeoutMills",
        "registerNameServerPeriod",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "storeReplyMessageEnable",
        "timerMaxDelaySec",
        "traceOn",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionOpBatchInterval",
        "transactionOpMsgMaxSize",
        "transactionTimeOut",
        "useSeparateRetryQueue",
        "useServerSideResetOffset",
    }
)
# Keys after whose change all topics are registered again.
_REGISTERED_AGAIN: Final = frozenset({"brokerPermission"})
# None of these may name a file, an address, a command, code or a credential.
CHANGEABLE_KEYS: Final = LIVE_KEYS | store_config.LIVE_KEYS | replication_config.LIVE_KEYS
# Shown unless the file has them, because mqadmin reads them: without the former ones that of 4.9
# exports no configuration, and the last one it exports as the number of processors.
_FIXED: Final = {
    "filterServerNums": "0",
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
}
# Java: initConfigBlackList; `configBlackList` may name more.
_BLACK_LIST: Final = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


class GivenConfig(NamedTuple):
    """Holds the entries of the configuration file and its path, None without a file.

    `is_shared` says that other processes have their settings from the same file.
    """

    properties: Mapping[str, str]
    file: Path | None
    is_shared: bool = False


NOTHING_GIVEN: Final = GivenConfig({}, None)


class ConfigHandlers:
    """Serves requests about the configuration. For the loop's thread only."""

    def __init__(self, parts: Parts, given: GivenConfig) -> None:
        self._state = parts.state
        self._config = parts.config
        self._store = parts.store
        self._replication = parts.replication
        self._access = parts.access
        self._clock = parts.clock
        self._topics = parts.topics
        self._configuration = Configuration(
            [parts.config, parts.store.config, parts.replication, parts.access], given.properties
        )
        more = given.properties.get("configBlackList", "").split(";")
        self._black_list = _BLACK_LIST | {key.strip() for key in more}
        # An operator made it, so it is on the machine's disk wherever the store is.
        self._file = (
            None
            if given.file is None
            else JsonFile(
                given.file,
                keep_permissions=True,
                is_shared=given.is_shared,
                files=SYSTEM_FILES,
            )
        )
        # Updates take effect in the order in which they came, however long they are.
        self._order = asyncio.Lock()
        self._is_prepared = False
        self._unsaved: dict[str, str] = {}
        self._version = DataVersion()
        self._fixed = {k: v for k, v in _FIXED.items() if k not in given.properties}

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.UPDATE_BROKER_CONFIG, self.update)
        handlers.register(requests.GET_BROKER_CONFIG, self.show)

    def show(self, _connection: Connection, _request: Request[NoHeader]) -> RemotingCommand:
        """Return every key in force, as properties text, with the secrets hidden."""
        return response(
            ResponseCode.SUCCESS,
            ext={"version": encode_body(self._version).decode()},
            body=self._configuration.shown_text(self._fixed),
        )

    async def update(self, connection: Connection, request: Request[NoHeader]) -> RemotingCommand:
        """Change all keys that the body names, or refuse and change none; then write the file.

        In the file only the lines of changed keys change; Java writes all keys and no comments.
        """
        async with self._order:
            if not self._is_prepared:
                await asyncio.get_running_loop().run_in_executor(None, prepare)
                self._is_prepared = True
            changed = await self._changed(request.body, connection.peer)
        await self._save(changed)
        return response(ResponseCode.SUCCESS)

    async def _changed(self, body: bytes, peer: str) -> dict[str, str]:
        """Change the configuration as a body says, and return what has changed."""
        source = f"the update from {peer}"
        changes: dict[str, str] = {}
        await run_slices(decode_update(body, source, changes))
        changes = {key: value for key, value in changes.items() if self._fixed.get(key) != value}
        if self._black_list & changes.keys():
            raise Refused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        await run_slices(
            check_update(
                changes,
                CONFIG_CLASSES,
                server="broker",
                source=source,
                promises=BROKER_PROMISES,
                given=self._configuration.properties().keys(),
            )
        )
        changes = self._check(changes, source)
        changed = self._configuration.update(changes, source)
        self._store.settings_changed()
        if "logLevel" in changed:
            change_log_level(changed["logLevel"])
        self._version.next(self._clock.now_ms())
        log.info("configuration updated", changed=changed, by=peer)
        if not _REGISTERED_AGAIN.isdisjoint(changed):
            self._topics.permission_changed()
        return changed

    def _check(self, changes: Mapping[str, str], source: str) -> dict[str, str]:
        """Return what changes. Raise ConfigError unless every change can be made now."""
        configs = (self._config, self._store.config, self._replication, self._access)
        for config in configs:
            current = to_properties(config)
            # The values of a class may have to fit together, so they are checked together.
            from_properties(type(config), {**current, **changes}, source)
        wanted = check_changeable(
            changes,
            self._configuration.shown(),
            CHANGEABLE_KEYS,
            server="broker",
            source=source,
        )
        if "logLevel" in wanted:
            check_log_is_ours()
        return wanted

    async def _save(self, changed: Mapping[str, str]) -> None:
        if self._file is None:
            if changed:
                log.warning("no configuration file was given, the change ends with this broker")
            return
        path = self._file.path
        # The file may lack earlier changes too, if these could not be written.
        unsaved = self._unsaved = {**self._unsaved, **changed}
        try:
            await self._state.save(self._file, lambda: _changed_text(path, self._unsaved))
        except OSError as error:
            raise CometMQError(
                f"the change is in force but {path} could not be written; that is tried again until "
                f"it can, and without it the change ends with this broker: {error.strerror or error}"
            ) from error
        if self._unsaved is unsaved:
            self._unsaved = {}


def _changed_text(path: Path, changed: Mapping[str, str]) -> Iterator[str]:
    # The file is read in the thread that writes it, beside the loop.
    yield change_properties(path, changed)
