"""Hold the table of mqadmin's commands, and load the module of the command that is called.

A command starts in a fraction of a second only if the other ninety are not built.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Final

import typer

from cometmq.cli.admin.command import OutputForm
from cometmq.cli.help import Command, Group

# The commands of each module, in the order in which help lists them.
MODULES: Final[dict[str, tuple[str, ...]]] = {
    "topics": (
        "updateTopic",
        "updateTopicList",
        "deleteTopic",
        "updateTopicPerm",
        "topicRoute",
        "topicStatus",
        "topicClusterList",
        "topicList",
        "allocateMQ",
        "updateOrderConf",
    ),
    "groups": (
        "updateSubGroup",
        "updateSubGroupList",
        "deleteSubGroup",
        "getConsumerConfig",
        "setConsumeMode",
    ),
    "progress": ("consumerProgress", "consumerStatus"),
    "connections": ("consumerConnection", "producerConnection", "producer"),
    "offsets": (
        "resetOffsetByTime",
        "skipAccumulatedMessage",
        "cloneGroupOffset",
        "getConsumerStatus",
    ),
    "queues": ("queryCq",),
    "messages": ("queryMsgById", "queryMsgByKey", "queryMsgByUniqueKey", "queryMsgByOffset"),
    "reading": ("printMsg", "printMsgByQueue", "consumeMessage", "dumpCompactionLog"),
    "trace": ("queryMsgTraceById",),
    "sending": ("sendMessage", "checkMsgSendRT", "sendMsgStatus"),
    "letters": ("deadLetters", "redriveDeadLetters", "givenUpHalves", "resumeHalf"),
    "brokers": (
        "brokerStatus",
        "updateBrokerConfig",
        "getBrokerConfig",
        "cleanExpiredCQ",
        "cleanUnusedTopic",
        "deleteExpiredCommitLog",
    ),
    "clusters": ("clusterList", "clusterRT"),
    "name_servers": (
        "getNamesrvConfig",
        "updateNamesrvConfig",
        "updateKvConfig",
        "deleteKvConfig",
        "wipeWritePerm",
        "addWritePerm",
    ),
    "stats": ("statsAll", "brokerConsumeStats"),
    "monitoring": ("startMonitoring",),
    "access": (
        "createUser",
        "updateUser",
        "deleteUser",
        "getUser",
        "listUser",
        "copyUser",
        "createAcl",
        "updateAcl",
        "deleteAcl",
        "getAcl",
        "listAcl",
        "copyAcl",
    ),
    "accounts": (
        "updateAclConfig",
        "deleteAclConfig",
        "clusterAclConfigVersion",
        "updateGlobalWhiteAddr",
    ),
    "export": ("exportMetadata", "exportConfigs", "exportMetrics", "exportPopRecord"),
    "java_brokers": (
        "haStatus",
        "getBrokerEpoch",
        "resetMasterFlushOffset",
        "getColdDataFlowCtrInfo",
        "updateColdDataFlowCtrGroupConfig",
        "removeColdDataFlowCtrGroupConfig",
        "setCommitLogReadAheadMode",
        "checkRocksdbCqWriteProgress",
        "rocksDBConfigToJson",
    ),
    "refused": (
        "updateStaticTopic",
        "remappingStaticTopic",
        "addBroker",
        "removeBroker",
        "getSyncStateSet",
        "getControllerMetaData",
        "getControllerConfig",
        "updateControllerConfig",
        "electMaster",
        "cleanBrokerMetadata",
        "exportMetadataInRocksDB",
        "switchTimerEngine",
        "getBrokerLiteInfo",
        "getParentTopicInfo",
        "getLiteTopicInfo",
        "getLiteClientInfo",
        "getLiteGroupInfo",
        "triggerLiteDispatch",
    ),
}
# Other names of commands that mqadmin knows.
ALIASES: Final[dict[str, str]] = {"deleteAccessConfig": "deleteAclConfig"}
# Titles of the help for the commands of a module, where they differ from the module's name.
PANELS: Final[dict[str, str]] = {
    "name_servers": "Name servers",
    "java_brokers": "Replication, cold data, RocksDB",
    "sending": "Messages",
    "reading": "Messages",
    "trace": "Messages",
    "letters": "Dead letters and transactions (not in mqadmin)",
    "refused": "Only in mqadmin",
    "groups": "Consumer groups",
    "progress": "Consumer groups",
    "monitoring": "Consumer groups",
    "stats": "Statistics",
    "access": "Users and policies (ACL 2.0)",
    "accounts": "Accounts (ACL 1.0)",
}

_MODULE_OF: Final = {name: module for module, names in MODULES.items() for name in names}
# mqadmin ignores the case of a command's name.
_NAMES: Final = {name.lower(): name for name in _MODULE_OF} | {
    alias.lower(): name for alias, name in ALIASES.items()
}


class AdminGroup(Group):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*_MODULE_OF, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = _NAMES.get(cmd_name.lower())
        return super().get_command(ctx, cmd_name) if name is None else built(name)


def built(name: str) -> Any:
    """Return the command of this name."""
    module = _MODULE_OF[name]
    commands: typer.Typer = import_module(f"cometmq.cli.admin.commands.{module}").app
    [info] = [info for info in commands.registered_commands if info.name == name]
    info.rich_help_panel = PANELS.get(module, module.capitalize())
    return typer.main.get_command_from_info(
        info,
        pretty_exceptions_short=commands.pretty_exceptions_short,
        rich_markup_mode=commands.rich_markup_mode,
    )


app = typer.Typer(
    cls=AdminGroup,
    help="Inspect and manage clusters, with mqadmin's commands and options.",
    no_args_is_help=True,
)


@app.callback()
def _admin(ctx: typer.Context, output: OutputForm = None) -> None:
    ctx.obj = output


@app.command("help", cls=Command, rich_help_panel="Help")
def _help(
    ctx: typer.Context, command: Annotated[str | None, typer.Argument(help="The command.")] = None
) -> None:
    """Show the options of a command."""
    group = ctx.parent
    assert group is not None
    assert isinstance(group.command, AdminGroup)
    if command is None:
        typer.echo(group.get_help())
        return
    _, found, _ = group.command.resolve_command(group, [command])
    with found.make_context(found.name, [], parent=group, resilient_parsing=True) as context:
        typer.echo(context.get_help())
