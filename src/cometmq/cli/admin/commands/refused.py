"""List the commands of mqadmin that are refused on purpose, each with its options and the reason.

They exist so that the refusal says what to do instead.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Final, NamedTuple

import typer

from cometmq.cli.help import Command
from cometmq.errors import ConfigError

app = typer.Typer()

_CONTROLLER: Final = (
    "CometMQ has no controller, a broker keeps the role that its configuration gives it; ask a "
    "controller of Java with mqadmin"
)
_CONTAINER: Final = (
    "CometMQ has no containers of brokers: start each broker as a process of its own; manage a "
    "container of Java with mqadmin"
)
_STATIC: Final = (
    "CometMQ has no static topics, whose logical queues move between brokers: make an ordinary topic "
    "with updateTopic; manage static topics of Java with mqadmin"
)
_ROCKSDB: Final = (
    "CometMQ does not read RocksDB's own files, and its brokers have none: topics, groups and "
    "offsets are JSON files below config/ of the store; use mqadmin beside a broker of Java, or "
    "rocksDBConfigToJson to ask one"
)
_TIMER: Final = (
    "CometMQ's brokers have only one engine for delayed messages, which reads them from the log, so there "
    "is nothing to switch to; switch Java's brokers with mqadmin"
)
_LITE: Final = (
    "CometMQ has no lite topics (RocketMQ 5.5): use a topic of the type NORMAL or FIFO, and message "
    "groups or tags in place of lite topics; for lite topics of Java's brokers use mqadmin"
)


class _Refused(NamedTuple):
    help: str
    reason: str
    # As `short/long`, with a * where it takes no value.
    options: str


REFUSED: Final[dict[str, _Refused]] = {
    "updateStaticTopic": _Refused(
        "Make a static topic.",
        _STATIC,
        "c/clusters b/brokers t/topic qn/totalQueueNum mf/mapFile fr/forceReplace",
    ),
    "remappingStaticTopic": _Refused(
        "Move the logical queues of a static topic.",
        _STATIC,
        "c/clusters b/brokers t/topic mf/mapFile fr/forceReplace",
    ),
    "addBroker": _Refused(
        "Start a broker in a container.",
        _CONTAINER,
        "c/brokerContainerAddr b/brokerConfigPath",
    ),
    "removeBroker": _Refused(
        "Stop a broker in a container.",
        _CONTAINER,
        "c/brokerContainerAddr b/brokerIdentity",
    ),
    "getSyncStateSet": _Refused(
        "Show which slaves are in step.",
        _CONTROLLER,
        "a/controllerAddress c/clusterName b/brokerName i/interval",
    ),
    "getControllerMetaData": _Refused(
        "Show the leader of the controllers.", _CONTROLLER, "a/controllerAddress"
    ),
    "getControllerConfig": _Refused(
        "Show the settings of controllers.", _CONTROLLER, "a/controllerAddress"
    ),
    "updateControllerConfig": _Refused(
        "Change a setting of controllers.", _CONTROLLER, "a/controllerAddress k/key v/value"
    ),
    "electMaster": _Refused(
        "Have the controller choose another master.",
        _CONTROLLER,
        "a/controllerAddress b/brokerId bn/brokerName c/clusterName",
    ),
    "cleanBrokerMetadata": _Refused(
        "Have the controller forget brokers.",
        _CONTROLLER,
        "a/controllerAddress b/brokerControllerIdsToClean bn/brokerName c/clusterName "
        "l/cleanLivingBroker*",
    ),
    "exportMetadataInRocksDB": _Refused(
        "Export topics and groups out of RocksDB's files.",
        _ROCKSDB,
        "p/path t/configType j/jsonEnable",
    ),
    "switchTimerEngine": _Refused(
        "Have brokers keep delayed messages in RocksDB, or in files.",
        _TIMER,
        "b/brokerAddr c/clusterName e/engineType",
    ),
    "getBrokerLiteInfo": _Refused(
        "Show how many lite topics brokers have.", _LITE, "b/brokerAddr c/cluster d/showDetail"
    ),
    "getParentTopicInfo": _Refused(
        "Show how many lite topics a topic has.", _LITE, "p/parentTopic"
    ),
    "getLiteTopicInfo": _Refused(
        "Show the offsets and subscribers of a lite topic.",
        _LITE,
        "p/parentTopic l/liteTopic s/showClientId",
    ),
    "getLiteClientInfo": _Refused(
        "Show the lite topics of a client.", _LITE, "p/parentTopic g/group c/clientId s/showDetail"
    ),
    "getLiteGroupInfo": _Refused(
        "Show how far a group is behind in lite topics.",
        _LITE,
        "p/parentTopic g/group l/liteTopic k/topK",
    ),
    "triggerLiteDispatch": _Refused(
        "Have brokers deliver lite topics again.",
        _LITE,
        "p/parentTopic g/group c/clientId b/brokerName",
    ),
}


def _register(name: str, refused: _Refused) -> None:
    parameters = []
    for declared in f"{refused.options} n/namesrvAddr".split():
        short, _, long = declared.rstrip("*").partition("/")
        kind: Any = bool if declared.endswith("*") else str | None
        option = typer.Option(f"-{short}", f"--{long}", hidden=True)
        parameters.append(
            inspect.Parameter(
                long,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if kind is bool else None,
                annotation=Annotated[kind, option],
            )
        )

    def refuse(**_given: Any) -> None:
        raise ConfigError(f"{name} is refused: {refused.reason}")

    refuse.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # may have one
    refuse.__annotations__ = {p.name: p.annotation for p in parameters}
    refuse.__doc__ = f"{refused.help} Refused: {refused.reason}."
    app.command(name, cls=Command)(refuse)


for _name, _refused in REFUSED.items():
    _register(_name, _refused)
