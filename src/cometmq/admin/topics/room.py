"""Make, change, delete and list topics, and show their routes and statistics.

Commands of mqadmin: updateTopic, updateTopicList, updateTopicPerm, deleteTopic, topicList,
topicRoute, topicStatus, topicClusterList, updateOrderConf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cometmq.admin.room import Room
from cometmq.admin.routed import masters_of, readable_of
from cometmq.admin.topics.queue_bodies import queue_table_and_rate
from cometmq.admin.topics.records import TopicStats, stats_of
from cometmq.admin.topics.values import attribute_changes, permission_of
from cometmq.errors import IllegalArgumentError, RemoteError, RouteNotFoundError
from cometmq.model.names import AUTO_CREATE_TOPIC, check_topic
from cometmq.model.route import TopicRouteData
from cometmq.model.sysflag import PERM_RW
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import TopicConfigList
from cometmq.protocol.bodies.inspection import TopicOffset
from cometmq.protocol.codes import MQVersion, ResponseCode, version_text
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetKVConfigRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicsByClusterRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PutKVConfigRequestHeader,
)

# Java: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG.
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
QUEUES: Final = 8


class Topics(Room):
    """Manages topics. A `permission` is the sum of 4 (read), 2 (write) and 1 (inherit)."""

    async def create(
        self,
        topic: str,
        *,
        read_queues: int = QUEUES,
        write_queues: int = QUEUES,
        permission: int = PERM_RW,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        system_flag: int = 0,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make a topic, or set one that exists to these values; return the brokers' addresses.

        `attributes` are set beside those that the topic has. With `order` the name servers get the
        number of each broker's queues, as by mqadmin.
        """
        check_topic(topic)
        config = TopicConfig(
            topic_name=topic,
            order=order,
            perm=permission_of(permission),
            read_queue_nums=read_queues,
            write_queue_nums=write_queues,
            topic_sys_flag=system_flag,
        )
        brokers = await self._servers.brokers(cluster=cluster, broker=broker)
        changes = attribute_changes(attributes or {}, ())
        if order:  # before the topic is made at a broker that the order configuration cannot name
            await self._names_of((at.address for at in brokers), topic)
        done = await self._servers.each(
            [at.address for at in brokers],
            lambda address: self._put(address, config, changes),
            f"making topic {topic}",
        )
        if order:
            await self._put_order(topic, dict.fromkeys(done, write_queues))
        return list(done)

    async def create_many(
        self,
        configs: Iterable[TopicConfig],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make or set many topics in one request to each broker; return the brokers' addresses.

        A key of `attributes` has `+` in front to be set, `-` to be removed. A broker makes all of
        them or none. Brokers before 5.2 do not know the request.
        """
        body = TopicConfigList(list(configs))
        for config in body.topic_config_list:
            check_topic(config.topic_name)

        addresses = await self._servers.addresses(cluster=cluster, broker=broker)
        return await self._servers.change_each(
            addresses,
            requests.UPDATE_AND_CREATE_TOPIC_LIST,
            NoHeader(),
            body,
            what=f"making {len(body.topic_config_list)} topics",
        )

    async def update(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        remove_attributes: Iterable[str] = (),
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Change what is given of a topic, and leave the rest as each broker has it.

        Without `cluster` and `broker` the topic is changed at every broker that has it. Return the
        configuration before the change by address. The order configuration follows: it gets the
        queues of brokers where the topic is ordered, and loses those of brokers where it no longer
        is.
        """
        changes = attribute_changes(attributes or {}, tuple(remove_attributes))
        given = {
            "read_queue_nums": read_queues,
            "write_queue_nums": write_queues,
            "perm": None if permission is None else permission_of(permission),
            "order": order,
        }
        wanted = {name: value for name, value in given.items() if value is not None}

        def moves_order(before: TopicConfig) -> bool:
            if order is None:
                return write_queues is not None and before.order
            # An operator who names brokers by address alone has no order configuration to clear.
            return order or self._servers.has_name_servers

        async def change(address: str) -> TopicConfig:
            before = await self._config_at(address, topic)
            if moves_order(before):
                await self._names_of([address], topic)
            await self._put(address, msgspec.structs.replace(before, **wanted), changes)
            return before

        addresses = await self._holders(topic, cluster, broker)
        before = await self._servers.each(addresses, change, f"changing topic {topic}")
        counts = {
            address: None if order is False else wanted.get("write_queue_nums", it.write_queue_nums)
            for address, it in before.items()
            if moves_order(it)
        }
        if counts:
            await self._put_order(topic, counts)
        return before

    async def delete(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        missing_ok: bool = False,
    ) -> list[str]:
        """Delete a topic with its messages, then its route; return the brokers' addresses.

        Name servers delete the route only if no single `broker` is named, and after every broker
        has deleted the topic. A call that failed at a server can be repeated. Raises
        RouteNotFoundError if neither a name server nor one of the brokers has the topic, unless
        `missing_ok`.
        """
        check_topic(topic)
        brokers = await self._servers.brokers(cluster=cluster, broker=broker)
        if not missing_ok:
            await self._need(topic, [at.address for at in brokers])

        addresses = [at.address for at in brokers]
        done = await self._servers.change_each(
            addresses,
            requests.DELETE_TOPIC_IN_BROKER,
            DeleteTopicRequestHeader(topic=topic),
            what=f"the deletion of topic {topic}",
        )
        if broker is None:
            header = DeleteTopicFromNamesrvRequestHeader(
                topic=topic, cluster_name=brokers[0].cluster
            )

            await self._servers.change_each(
                self._servers.name_servers,
                requests.DELETE_TOPIC_IN_NAMESRV,
                header,
                what=f"the deletion of topic {topic} from the routes",
            )
        return list(done)

    async def names(self, *, cluster: str | None = None) -> list[str]:
        """Return the names of all topics that the name servers know, or those of a cluster."""
        if cluster is None:
            _, answer = await self._servers.ask_name_server(
                requests.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoHeader(), what="the list of topics"
            )
        else:
            await self._servers.brokers(cluster=cluster)  # an unknown one would have no topics
            _, answer = await self._servers.ask_name_server(
                requests.GET_TOPICS_BY_CLUSTER,
                GetTopicsByClusterRequestHeader(cluster=cluster),
                what=f"the list of topics of cluster {cluster}",
            )
        return sorted(answer.body.topic_list)

    async def system_topics(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, list[str]]:
        """Return the topics that belong to the brokers themselves, by address."""
        return await self._ask_brokers(
            requests.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            NoHeader(),
            what="the list of system topics",
            read=lambda answer: sorted(answer.body.topic_list),
            cluster=cluster,
            broker=broker,
        )

    async def route(self, topic: str) -> TopicRouteData:
        """Return which brokers have the topic, and how many queues."""
        return await self._servers.route(topic)

    async def clusters(self, topic: str) -> list[str]:
        """Return the names of the clusters that have the topic."""
        route = await self._servers.route(topic)
        lost = [] if isinstance(route.lost_brokers, msgspec.UnsetType) else route.lost_brokers
        return sorted({data.cluster for data in route.broker_datas} | {at.cluster for at in lost})

    async def config(
        self, topic: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return the topic's configuration at each broker, by address.

        Without `cluster` and `broker` every broker that has the topic is asked.
        """
        if cluster is None and broker is None:
            route = await self._servers.route(topic)
            masters, missing = self._servers.masters_and_missing(route)
            addresses = list(masters.values())
        else:
            addresses, missing = await self._servers.addresses_and_missing(
                cluster=cluster, broker=broker
            )
        return await self._servers.each(
            addresses,
            lambda address: self._config_at(address, topic),
            f"the configuration of topic {topic}",
            missing=missing,
        )

    async def configs(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, dict[str, TopicConfig]]:
        """Return the configurations of all topics of each broker, by address and name."""
        return await self._at_brokers(
            self._configs_at, "the configurations of topics", cluster=cluster, broker=broker
        )

    async def stats(self, topic: str, *, cluster: str | None = None) -> TopicStats:
        """Return the offsets and times of every queue of the topic, sorted by queue.

        Of a topic that several clusters have, `cluster` chooses one. The results of a
        ServersFailedError are what each of the other brokers reports; `stats_of` joins them.
        """
        route = await self._servers.route(topic, cluster=cluster)

        found = await self._servers.ask_each(
            readable_of(route).values(),
            requests.GET_TOPIC_STATS_INFO,
            GetTopicStatsInfoRequestHeader(topic=topic),
            what=f"the statistics of topic {topic}",
            read=lambda answer: queue_table_and_rate(answer.body, TopicOffset, "topicPutTps"),
            missing=self._servers.missing_of(route),
        )
        return stats_of(topic, found)

    # The order configuration: how many queues an ordered topic has at each broker

    async def order_config(self, topic: str) -> str | None:
        """Return the order configuration (`broker-a:4;broker-b:4`), or None if there is none."""
        _, answer = await self._servers.ask_name_server(
            requests.GET_KV_CONFIG,
            GetKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic),
            what=f"the order configuration of topic {topic}",
            also=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return None if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.header.value

    async def set_order_config(self, topic: str, config: str) -> None:
        """Set the order configuration (`broker-a:4;broker-b:4`) at every name server."""
        check_topic(topic)
        header = PutKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic, value=config)
        what = f"the order configuration of topic {topic}"

        await self._servers.change_each(
            self._servers.name_servers, requests.PUT_KV_CONFIG, header, what=what
        )

    async def delete_order_config(self, topic: str) -> None:
        """Delete the order configuration at every name server."""
        header = DeleteKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic)
        what = f"the deletion of the order configuration of topic {topic}"

        await self._servers.change_each(
            self._servers.name_servers, requests.DELETE_KV_CONFIG, header, what=what
        )

    # Inside

    async def _holders(self, topic: str, cluster: str | None, broker: str | None) -> Iterable[str]:
        if cluster is not None or broker is not None:
            return await self._servers.addresses(cluster=cluster, broker=broker)
        return masters_of(await self._servers.route(topic), topic).values()

    async def _need(self, topic: str, addresses: Iterable[str]) -> None:
        """Raise RouteNotFoundError unless a name server or one of these brokers has the topic."""
        try:
            await self._servers.route(topic)
        except RouteNotFoundError:
            what = f"whether topic {topic} exists"

            async def held(address: str) -> bool:
                try:
                    await self._config_at(address, topic)
                except RemoteError as error:
                    if error.code != ResponseCode.TOPIC_NOT_EXIST:
                        raise
                    return False
                return True

            found = await self._servers.ask_each(
                self._servers.name_servers,
                requests.GET_ROUTEINFO_BY_TOPIC,
                GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True),
                what=what,
                also=(ResponseCode.TOPIC_NOT_EXIST,),
                read=lambda answer: answer.code == ResponseCode.SUCCESS,
            )
            found |= await self._servers.each(addresses, held, what)
            if not any(found.values()):
                raise

    async def _put(self, address: str, config: TopicConfig, changes: str) -> None:
        answer = await self._servers.ask(
            address,
            requests.UPDATE_AND_CREATE_TOPIC,
            CreateTopicRequestHeader(
                topic=config.topic_name,
                default_topic=AUTO_CREATE_TOPIC,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
                attributes=changes or None,
            ),
            what=f"making topic {config.topic_name}",
        )
        version = answer.command.version
        if changes and version < MQVersion.V5_0_0:
            raise RemoteError(
                f"topic {config.topic_name} was set at {address}, but without its attributes "
                f"{changes}: the broker speaks RocketMQ {version_text(version)}, and attributes "
                "came with 5.0.0; upgrade it, or leave them out",
                code=ResponseCode.VERSION_NOT_SUPPORTED,
                address=address,
            )

    async def _config_at(self, address: str, topic: str) -> TopicConfig:
        what = f"the configuration of topic {topic}"
        answer = await self._servers.ask(
            address,
            requests.GET_TOPIC_CONFIG,
            GetTopicConfigRequestHeader(topic=topic),
            what=what,
            also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
        )
        if answer.code == ResponseCode.SUCCESS:
            return answer.body
        # A broker of 4.x reports all topics or none.
        config = (await self._configs_at(address)).get(topic)
        if config is None:
            raise RemoteError(
                f"{what} was refused by {address}: it has no such topic; check the name",
                code=ResponseCode.TOPIC_NOT_EXIST,
                address=address,
            )
        return config

    async def _configs_at(self, address: str) -> dict[str, TopicConfig]:
        answer = await self._servers.ask(
            address,
            requests.GET_ALL_TOPIC_CONFIG,
            NoHeader(),
            what="the configurations of topics",
        )
        return answer.body.topic_config_table

    async def _names_of(self, addresses: Iterable[str], topic: str) -> dict[str, str]:
        """Return the broker names by address. Raises IllegalArgumentError if one is not known."""
        info = await self._servers.cluster_info()
        known = {
            address: name
            for name, data in info.broker_addr_table.items()
            for address in data.broker_addrs.values()
        }
        names = {}
        for address in addresses:
            if address not in known:
                raise IllegalArgumentError(
                    f"no name server knows a broker at {address}, so the order configuration of "
                    f"topic {topic} cannot name it; give the broker's name, or an address of "
                    "brokers.addresses()"
                )
            names[address] = known[address]
        return names

    async def _put_order(self, topic: str, counts: Mapping[str, int | None]) -> None:
        """Write to the name servers how many queues these brokers have, by address; None takes a
        broker out.

        Their entries for other brokers stay.
        """
        names = await self._names_of(counts, topic)
        known = await self.order_config(topic) or ""
        entries = dict(part.partition(":")[::2] for part in known.split(";") if part)
        for address, count in counts.items():
            if count is None:
                entries.pop(names[address], None)
            else:
                entries[names[address]] = str(count)
        text = ";".join(f"{name}:{count}" for name, count in sorted(entries.items()))
        if text:
            await self.set_order_config(topic, text)
        elif known:
            await self.delete_order_config(topic)
