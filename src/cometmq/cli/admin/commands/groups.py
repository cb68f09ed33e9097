"""Define mqadmin's commands that make, change, delete and show consumer groups."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cometmq.admin.groups.records import GroupFields
from cometmq.cli.admin.command import TRUTH, Broker, Cluster, Run, command, exactly_one, truth
from cometmq.errors import CometMQError, ConfigError, RemoteError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.protocol.codes import ResponseCode

app = typer.Typer()


class Mode(Enum):
    PULL = "PULL"
    POP = "POP"


Group = Annotated[str, typer.Option("-g", "--groupName", metavar="NAME", help="The group.")]


def _json_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise typer.BadParameter(
            f'{text!r:.80} is no JSON object ({error}); give one as in {{"type":"CUSTOMIZED",'
            '"customizedRetryPolicy":{"next":[1000,5000,10000]}}'
        ) from error


def _attributes(text: str) -> dict[str, str]:
    """Parse `+key=value,-key` as groups.create takes it: the signs stay with the keys."""
    changes = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if len(key) < 2 or (key[0], equals) not in (("+", "="), ("-", "")):
            raise typer.BadParameter(
                f"{part!r:.80} is no change of an attribute; give +key=value to set it, or -key to "
                "remove it"
            )
        changes[key] = value
    return changes


def _flag(letter: str, name: str, text: str) -> Any:
    return typer.Option(letter, f"--{name}", metavar=TRUTH, parser=truth, help=text)


_FromMin = Annotated[
    Any, _flag("-m", "consumeFromMinEnable", "Whether it may begin at the first message.")
]
_Broadcast = Annotated[
    Any, _flag("-d", "consumeBroadcastEnable", "Whether it may consume as broadcasts.")
]
_Orderly = Annotated[Any, _flag("-o", "consumeMessageOrderly", "Whether it consumes in order.")]
_RetryQueues = Annotated[
    int, typer.Option("-q", "--retryQueueNums", help="How many queues its retry topic has.")
]
_RetryTimes = Annotated[
    int,
    typer.Option("-r", "--retryMaxTimes", help="Retries before a message is a dead letter."),
]
_RetryPolicy = Annotated[
    Any,
    typer.Option(
        "-p",
        "--groupRetryPolicy",
        metavar="JSON",
        parser=_json_object,
        help="The pauses between retries.",
    ),
]
_BrokerId = Annotated[
    int, typer.Option("-i", "--brokerId", help="The id of the broker that members consume from.")
]
_WhenSlow = Annotated[
    int,
    typer.Option(
        "-w",
        "--whichBrokerWhenConsumeSlowly",
        help="The id of the broker that slow members are sent to.",
    ),
]
_Notify = Annotated[
    Any,
    _flag(
        "-a", "notifyConsumerIdsChanged", "Whether members are notified when others come and go."
    ),
]
_Attributes = Annotated[
    Any,
    typer.Option(
        "--attributes",
        metavar="+KEY=VALUE,-KEY",
        parser=_attributes,
        help="Attributes to set and to remove.",
    ),
]


@command(app, "updateSubGroup", changes=True)
async def update_sub_group(
    run: Run,
    group: Group,
    *,
    broker: Broker = None,
    cluster: Cluster = None,
    consume_enable: Annotated[
        Any, _flag("-s", "consumeEnable", "Whether it may consume.")
    ] = "true",
    from_min: _FromMin = "false",
    broadcast: _Broadcast = "false",
    orderly: _Orderly = "false",
    retry_queues: _RetryQueues = 1,
    retry_times: _RetryTimes = 16,
    retry_policy: _RetryPolicy = None,
    broker_id: _BrokerId = 0,
    when_slow: _WhenSlow = 1,
    notify: _Notify = "true",
    attributes: _Attributes = None,
) -> None:
    """Make a group, or set one that exists to these values; options that are left out get their
    defaults.
    """
    exactly_one(brokerAddr=broker, clusterName=cluster)
    fields: GroupFields = {
        "consume_enable": consume_enable,
        "consume_from_min_enable": from_min,
        "consume_broadcast_enable": broadcast,
        "consume_message_orderly": orderly,
        "retry_queue_nums": retry_queues,
        "retry_max_times": retry_times,
        "broker_id": broker_id,
        "which_broker_when_consume_slowly": when_slow,
        "notify_consumer_ids_changed_enable": notify,
    }
    if retry_policy is not None:
        fields["group_retry_policy"] = retry_policy
    if attributes is not None:
        fields["attributes"] = attributes
    await run.change(
        f"set group {group}",
        await run.masters(cluster, broker),
        lambda: run.admin.groups.create(group, cluster=cluster, broker=broker, **fields),
    )


@command(app, "updateSubGroupList", changes=True)
async def update_sub_group_list(
    run: Run,
    filename: Annotated[
        Path,
        typer.Option(
            "-f", "--filename", help="A JSON list of groups, each with groupName and other fields."
        ),
    ],
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Make or set many groups: all of them or none at each broker."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    configs = _configs_of(filename)
    await run.change(
        f"set {len(configs)} groups",
        await run.masters(cluster, broker),
        lambda: run.admin.groups.create_many(configs, cluster=cluster, broker=broker),
    )


def _configs_of(file: Path) -> list[SubscriptionGroupConfig]:
    try:
        configs = msgspec.json.decode(file.read_bytes(), type=list[SubscriptionGroupConfig])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read as a JSON list of groups: {error}; write it as in "
            '[{"groupName": "billing", "retryMaxTimes": 3}]'
        ) from error
    if nameless := [place for place, config in enumerate(configs, 1) if not config.group_name]:
        raise ConfigError(f"{file}: group {nameless[0]} of the list has no groupName; give it one")
    if not configs:
        raise ConfigError(f"{file} has no group; write at least one into the list")
    return configs


@command(app, "deleteSubGroup", changes=True)
async def delete_sub_group(
    run: Run,
    group: Group,
    broker: Broker = None,
    cluster: Cluster = None,
    remove_offset: Annotated[
        Any, _flag("-r", "removeOffset", "Whether to delete the group's offsets, too.")
    ] = "false",
) -> None:
    """Delete a group, and at a whole cluster its retry topic and its dead letters, too."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    servers = await run.masters(cluster, broker)
    await run.admin.groups.config(group, cluster=cluster, broker=broker)  # say so if there is none
    goes = ["its retry topic and dead letters"] if cluster is not None else []
    goes += ["its offsets"] if remove_offset else []
    await run.change(
        " with ".join([f"delete group {group}", *([" and ".join(goes)] if goes else [])]),
        servers,
        lambda: run.admin.groups.delete(
            group, clean_offsets=remove_offset, cluster=cluster, broker=broker
        ),
        destroys=True,
        in_steps=cluster is not None,
    )


@command(app, "getConsumerConfig")
async def get_consumer_config(run: Run, group: Group) -> None:
    """Show a group's configuration at each broker that has it."""
    run.lacks(await run.admin.brokers.missing())
    unknown: RemoteError | None = None
    found = False
    for at in await run.admin.brokers.addresses(slaves=False):
        try:
            config = (await run.admin.groups.config(group, broker=at.address))[at.address]
        except CometMQError as error:
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                unknown = RemoteError(str(error), code=error.code)
            else:
                run.failed(at.address, error)
            continue
        found = True
        run.out.record(msgspec.to_builtins(config), section=f"{at.cluster}:{at.broker_name}")
    if unknown is not None and not found:
        raise unknown


@command(app, "setConsumeMode", changes=True)
async def set_consume_mode(
    run: Run,
    topic: Annotated[str, typer.Option("-t", "--topicName", metavar="NAME", help="The topic.")],
    group: Group,
    mode: Annotated[Mode, typer.Option("-m", "--mode", help="The mode.")],
    broker: Broker = None,
    cluster: Cluster = None,
    pop_share: Annotated[
        int,
        typer.Option(
            "-q", "--popShareQueueNum", help="How many other members share a queue in POP mode."
        ),
    ] = 0,
) -> None:
    """Choose how members of a group get a topic's messages, if they let the broker divide the queues."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    await run.change(
        f"have group {group} get topic {topic} by {mode.value}",
        await run.masters(cluster, broker),
        lambda: run.admin.groups.set_request_mode(
            group, topic, mode.value, pop_share_queues=pop_share, cluster=cluster, broker=broker
        ),
    )
