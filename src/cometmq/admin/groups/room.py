"""Make, change, delete and list consumer groups, and show their members and progress.

Commands of mqadmin: updateSubGroup, updateSubGroupList, deleteSubGroup, getConsumerConfig,
consumerConnection, consumerProgress, consumerStatus.

Longer than 500 lines: these are the calls of one room, most of them one request each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Unpack

import msgspec

from cometmq.admin.absent import Absent
from cometmq.admin.groups.reading import GroupReading
from cometmq.admin.groups.records import (
    GroupConnections,
    GroupFields,
    GroupProgress,
    RunningInfo,
    connection_of,
    joined,
    merged,
    queue_progress,
)
from cometmq.admin.groups.stored_offsets import distinguish_none_from_zero
from cometmq.admin.routed import readable_of
from cometmq.admin.servers import failure
from cometmq.admin.topics.queue_bodies import queue_table_and_rate
from cometmq.errors import (
    CometMQError,
    IllegalArgumentError,
    RemoteError,
    RouteNotFoundError,
    ServersFailedError,
)
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import check_group, dlq_topic, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import MessageQueueBean, SubscriptionGroupList
from cometmq.protocol.bodies.inspection import OffsetWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetConsumeStatsRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from cometmq.runtime.spelling import did_you_mean

# Offsets as each member of a group knows them, by client id.
MemberOffsets = dict[str, dict[MessageQueue, int]]

# As in Java's tools: a broker may have to look up very many queues.
_PROGRESS_TIMEOUT_S: Final = 15.0


class Groups(GroupReading):
    """Manages consumer groups."""

    async def create(
        self,
        group: str,
        /,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        **fields: Unpack[GroupFields],
    ) -> list[str]:
        """Make a group, or set one that exists to these values; return the brokers' addresses.

        `fields` are those of SubscriptionGroupConfig (`retry_max_times=3`), with its defaults.
        """
        check_group(group)
        _check_fields(fields)
        config = SubscriptionGroupConfig(group_name=group, **fields)
        addresses = await self._servers.addresses(cluster=cluster, broker=broker)

        what = f"making group {group}"
        return list(
            await self._servers.each(addresses, lambda address: self._put(address, config), what)
        )

    async def create_many(
        self,
        configs: Iterable[SubscriptionGroupConfig],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make or set many groups in one request to each broker; return the addresses.

        A broker makes all of them or none. Brokers before 5.2 do not know the request.
        """
        body = SubscriptionGroupList(list(configs))
        for config in body.group_config_list:
            check_group(config.group_name)

        addresses = await self._servers.addresses(cluster=cluster, broker=broker)
        return await self._servers.change_each(
            addresses,
            requests.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            NoHeader(),
            body,
            what=f"making {len(body.group_config_list)} groups",
        )

    async def update(
        self,
        group: str,
        /,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        before: Mapping[str, SubscriptionGroupConfig] | None = None,
        **fields: Unpack[GroupFields],
    ) -> dict[str, SubscriptionGroupConfig]:
        """Change fields of a group, and leave the rest as each broker has it.

        Return the configuration before the change by address, of those brokers that have the group.
        A caller that has just read it passes it as `before`, in place of `cluster` and `broker`:
        reading it takes the configurations of all groups.
        """
        _check_fields(fields)
        if before is None:
            before = await self.config(group, cluster=cluster, broker=broker)

        async def change(address: str) -> None:
            kept = msgspec.structs.replace(before[address], attributes={})
            await self._put(address, msgspec.structs.replace(kept, **fields))

        await self._servers.each(before, change, f"changing group {group}")
        return dict(before)

    async def delete(
        self,
        group: str,
        *,
        clean_offsets: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
        missing_ok: bool = False,
    ) -> list[str]:
        """Delete a group, with its offsets if wanted; return the addresses.

        Unless a single `broker` is named, its retry topic and its dead letters go first, as far as
        brokers have them. So a call that failed at a server can be repeated. Raises RemoteError (SUBSCRIPTION_GROUP_NOT_EXIST) if no broker has the group, unless
        `missing_ok`.
        """
        check_group(group)
        if not missing_ok:
            await self.config(group, cluster=cluster, broker=broker)
        brokers = await self._servers.brokers(cluster=cluster, broker=broker)
        addresses = [at.address for at in brokers]
        header = DeleteSubscriptionGroupRequestHeader(
            group_name=group, clean_offset=clean_offsets, remove_offset=clean_offsets
        )
        what = f"the deletion of group {group}"

        async def delete_topics(address: str) -> None:
            for topic in (retry_topic(group), dlq_topic(group)):
                await self._servers.ask(
                    address,
                    requests.DELETE_TOPIC_IN_BROKER,
                    DeleteTopicRequestHeader(topic=topic),
                    what=f"the deletion of topic {topic}",
                )

        async def forget(address: str) -> None:
            for topic in (retry_topic(group), dlq_topic(group)):
                await self._servers.ask(
                    address,
                    requests.DELETE_TOPIC_IN_NAMESRV,
                    DeleteTopicFromNamesrvRequestHeader(
                        topic=topic, cluster_name=brokers[0].cluster
                    ),
                    what=f"the deletion of topic {topic} from the routes",
                )

        if broker is None:
            await self._servers.each(addresses, delete_topics, what)
            await self._servers.each(self._servers.name_servers, forget, what)
        return await self._servers.change_each(
            addresses, requests.DELETE_SUBSCRIPTIONGROUP, header, what=what
        )

    async def names(self, *, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """Return the names of all groups that the brokers have."""
        tables = await self.configs(cluster=cluster, broker=broker)
        return sorted({name for table in tables.values() for name in table})

    async def configs(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Return the configurations of all groups of each broker, by address and name."""
        return await self._ask_brokers(
            requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            NoHeader(),
            what="the configurations of groups",
            read=lambda answer: answer.body.subscription_group_table,
            cluster=cluster,
            broker=broker,
        )

    async def config(
        self, group: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """Return the group's configuration by address, of those brokers that have it.

        The request for a single group is not used: a Java broker makes the group that it asks for.
        """
        try:
            tables = await self.configs(cluster=cluster, broker=broker)
        except ServersFailedError as error:
            found = _of_group(group, error.results)
            raise failure(f"the configuration of group {group}", error.errors, found) from error
        found = _of_group(group, tables)
        if not found:
            raise _unknown(group)
        return found

    async def need(self, group: str) -> None:
        """Raise an error unless some broker has the group: the error of a broker that cannot be
        asked, else RemoteError (SUBSCRIPTION_GROUP_NOT_EXIST).
        """
        addresses, missing = await self._servers.readable_and_missing()
        for address in addresses:
            try:
                await self.config(group, broker=address)
            except RemoteError as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
            else:
                return
        for reason in missing.values():
            raise reason
        raise _unknown(group)

    # Groups and their topics

    async def of_topic(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic now or have an offset in it."""
        route = await self._servers.route(topic)

        found = await self._servers.ask_each(
            readable_of(route).values(),
            requests.QUERY_TOPIC_CONSUME_BY_WHO,
            QueryTopicConsumeByWhoRequestHeader(topic=topic),
            what=f"the groups of topic {topic}",
            read=lambda answer: answer.body.group_list,
            missing=self._servers.missing_of(route),
        )
        return sorted({group for groups in found.values() for group in groups})

    async def topics(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset. Brokers before 5.0 do not know the
        request.
        """
        what = f"the topics of group {group}"

        addresses, missing = await self._brokers_and_missing(group)
        found = await self._servers.ask_each(
            addresses,
            requests.QUERY_TOPICS_BY_CONSUMER,
            QueryTopicsByConsumerRequestHeader(group=group),
            what=what,
            read=lambda answer: answer.body.topic_list,
            missing=missing,
        )
        return sorted({topic for topics in found.values() for topic in topics})

    async def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return a group's selection of a topic: that of its members, or else that of its last pop. None if
        neither is known.

        Brokers before 5.0 do not know the request.
        """
        what = f"the subscription of group {group} to topic {topic}"

        addresses, missing = await self._brokers_and_missing(group)
        found = await self._servers.ask_each(
            addresses,
            requests.QUERY_SUBSCRIPTION_BY_CONSUMER,
            QuerySubscriptionByConsumerRequestHeader(group=group, topic=topic),
            what=what,
            read=lambda answer: answer.body.subscription_data,
            missing=missing,
        )
        return next((data for data in found.values() if data is not None), None)

    async def connections(self, group: str, *, broker: str | None = None) -> GroupConnections:
        """Return the members of a group as the brokers see them, or as one `broker` does.

        Raises RemoteError (CONSUMER_NOT_ONLINE) if no broker has a member. The results of a
        ServersFailedError are what each of the other brokers knows; `joined` joins them.
        """
        if broker is None:
            addresses, missing = await self._brokers_and_missing(group)
        else:
            addresses, missing = await self._servers.addresses(cluster=None, broker=broker), {}
        online = await self._servers.each(
            addresses,
            lambda address: self._connections_at(address, group),
            f"the members of group {group}",
            missing=missing,
        )
        members = joined(group, online.values())
        if members is None:
            at = ", ".join(sorted(online)) or Absent.ANY_BROKER()
            raise RemoteError(
                Absent.OFFLINE(group=group, brokers=at),
                code=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        return members

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> RunningInfo:
        """Ask a member of a group about itself, with the stacks of its threads if wanted.

        Brokers are asked in turns until one reaches the member. If none does, the errors of all of
        them are raised; RemoteError (CONSUMER_NOT_ONLINE) if there is no broker to ask.
        """
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=stacks
        )
        what = f"the state of client {client_id} of group {group}"
        addresses, missing = await self._brokers_and_missing(group)
        errors: dict[str, CometMQError] = {}
        for address in addresses:
            try:
                answer = await self._servers.ask(
                    address,
                    requests.GET_CONSUMER_RUNNING_INFO,
                    header,
                    what=what,
                    passed_on=True,
                )
            except CometMQError as error:  # another broker may have the client
                errors[address] = error
                continue
            info = answer.body
            return RunningInfo(
                client_id,
                info.properties,
                tuple(info.subscription_set),
                {_queue(key): value for key, value in info.mq_table.items()},
                info.status_table,
                info.jstack,
                {_queue(key): value for key, value in info.mq_pop_table.items()},
            )
        errors |= missing
        if not errors:
            raise RemoteError(
                f"{what} cannot be had: no broker is registered at the name servers; start one",
                code=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        raise failure(what, errors, {})

    async def member_offsets(
        self, group: str, topic: str, client_id: str | None = None
    ) -> MemberOffsets:
        """Return the offsets of a topic as each member of the group knows them, by client id.

        Members answer for themselves, so they may be ahead of the offsets that brokers store.
        Raises RemoteError: SUBSCRIPTION_GROUP_NOT_EXIST for a group that no broker has,
        CONSUMER_NOT_ONLINE for one without a member, or without the member `client_id`. The results
        of a ServersFailedError are what members report through each of the other brokers;
        `joined_offsets` joins them.
        """
        header = GetConsumerStatusRequestHeader(topic=topic, group=group, client_addr=client_id)
        what = f"the offsets that the members of group {group} know of topic {topic}"
        route = await self._servers.route(topic)

        async def ask(address: str) -> MemberOffsets:
            answer = await self._servers.ask(
                address,
                requests.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                header,
                what=what,
                passed_on=True,
            )
            found = decode_body(answer.body, dict[str, dict[str, dict[str, int]]])
            return {
                member: {_queue(key): offset for key, offset in table.items()}
                for member, table in found.get("consumerTable", {}).items()
            }

        await self._need_member(group, client_id)
        return joined_offsets(
            await self._servers.each(
                readable_of(route).values(), ask, what, missing=self._servers.missing_of(route)
            )
        )

    async def progress(
        self,
        group: str,
        topic: str | None = None,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> GroupProgress:
        """Return how far a group is in all its queues, or in those of one topic.

        Of a topic that several clusters have, `cluster` chooses one. With `broker` only that one is
        asked; it reports no queue of a group that it does not know. Otherwise raises RemoteError
        (SUBSCRIPTION_GROUP_NOT_EXIST) if no broker knows anything of the group. The results of a
        ServersFailedError are the progress at each of the other brokers; `merged` joins them.
        """
        check_group(group)
        if cluster is not None and topic is None:
            raise IllegalArgumentError(f"cluster {cluster!r:.80} needs a topic; name one")
        header = GetConsumeStatsRequestHeader(
            consumer_group=group, topic=topic, with_subscribed=True
        )
        what = f"the progress of group {group}"

        async def ask(address: str) -> GroupProgress:
            answer = await self._servers.ask(
                address,
                requests.GET_CONSUME_STATS,
                header,
                what=what,
                timeout_s=max(_PROGRESS_TIMEOUT_S, self._servers.timeout_s),
            )
            table, rate = queue_table_and_rate(answer.body, OffsetWrapper, "consumeTps")
            await distinguish_none_from_zero(self._servers, address, group, table)
            return GroupProgress(group, rate, queue_progress(table))

        if broker is not None:
            addresses = await self._servers.addresses(cluster=cluster, broker=broker)
            answers = await self._servers.each(addresses, ask, what)
            return merged(group, answers.values())
        if topic is None:
            addresses, missing = await self._brokers_and_missing(group)
        else:
            route = await self._servers.route(topic, cluster=cluster)
            addresses = list(readable_of(route).values())
            missing = self._servers.missing_of(route)
        answers = await self._servers.each(addresses, ask, what, missing=missing)
        found = merged(group, answers.values())
        if not found.queues:
            await self.need(group)
        return found

    # Inside

    async def _need_member(self, group: str, client_id: str | None) -> None:
        """Raise RemoteError unless the group has a member, and that with `client_id` if one is named."""
        try:
            members = await self.connections(group)
        except RemoteError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                await self.need(group)
            raise
        ids = [member.client_id for member in members.clients]
        if client_id is not None and client_id not in ids:
            raise RemoteError(
                f"group {group} has no member {client_id!r:.200}; it has {', '.join(ids[:5])}"
                + (f" and {len(ids) - 5} more" if len(ids) > 5 else ""),
                code=ResponseCode.CONSUMER_NOT_ONLINE,
            )

    async def _put(self, address: str, config: SubscriptionGroupConfig) -> None:
        await self._servers.ask(
            address,
            requests.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            NoHeader(),
            config,
            what=f"making group {config.group_name}",
        )

    async def _brokers_and_missing(self, group: str) -> tuple[list[str], dict[str, CometMQError]]:
        """Return the brokers that may know of a group (those of its retry topic, else all), and why
        lost ones cannot be asked.

        A group has no retry topic before its first member comes.
        """
        check_group(group)
        try:
            route = await self._servers.route(retry_topic(group))
        except RouteNotFoundError:
            return await self._servers.readable_and_missing()
        return list(readable_of(route).values()), self._servers.missing_of(route)

    async def _connections_at(self, address: str, group: str) -> GroupConnections | None:
        answer = await self._servers.ask(
            address,
            requests.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionListRequestHeader(consumer_group=group),
            what=f"the members of group {group}",
            also=(ResponseCode.CONSUMER_NOT_ONLINE,),
        )
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        body = answer.body
        return GroupConnections(
            group,
            body.consume_type,
            body.message_model,
            body.consume_from_where,
            tuple(map(connection_of, body.connection_set)),
            tuple(body.subscription_table.values()),
        )


def joined_offsets(found: Mapping[str, MemberOffsets]) -> MemberOffsets:
    """Join the offsets that members report through several brokers."""
    offsets: MemberOffsets = {}
    for members in found.values():
        for member, table in members.items():
            offsets.setdefault(member, {}).update(table)
    return offsets


def _check_fields(fields: GroupFields) -> None:
    known = GroupFields.__annotations__
    for name in fields:
        if name not in known:
            raise IllegalArgumentError(
                f"a group has no {name}{did_you_mean(name, known)}; it has {', '.join(known)}"
            )


def _of_group(
    group: str, tables: Mapping[str, Mapping[str, SubscriptionGroupConfig]]
) -> dict[str, SubscriptionGroupConfig]:
    return {address: table[group] for address, table in tables.items() if group in table}


def _queue(key: str) -> MessageQueue:
    return decode_body(key.encode(), MessageQueueBean).queue()


def _unknown(group: str) -> RemoteError:
    return RemoteError(
        Absent.GROUP(group=group),
        code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )
