"""Read and change the configuration of name servers, and the key-value entries that they hold.

Commands of mqadmin: getNamesrvConfig, updateNamesrvConfig, updateKvConfig, deleteKvConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from cometmq.admin.messages.reading import settings_of
from cometmq.admin.room import Room
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
)
from cometmq.runtime.configuration.config import format_properties

# The keys that `update_config` can change at a running name server. Java's take more keys, among them
# files and ports that take effect at the next start; ours refuse those.
CHANGEABLE_SETTINGS: Final = frozenset(
    {
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
        "logLevel",
        "needWaitForService",
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "supportActingMaster",
        "waitSecondsForService",
    }
)


class UnitTopics(Enum):
    """Chooses topics: topics of a unit, topics with subscribers of other units, or the latter
    without topics of a unit.
    """

    UNIT = "unit"
    UNIT_SUB = "unit-sub"
    UNIT_SUB_NOT_UNIT = "unit-sub-not-unit"


_UNIT_REQUESTS: Final = {
    UnitTopics.UNIT: requests.GET_UNIT_TOPIC_LIST,
    UnitTopics.UNIT_SUB: requests.GET_HAS_UNIT_SUB_TOPIC_LIST,
    UnitTopics.UNIT_SUB_NOT_UNIT: requests.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
}


class NameServers(Room):
    """Asks and manages name servers. Changes go to all of them; entries are read from the first one
    that answers.
    """

    async def addresses(self) -> list[str]:
        """Return the name servers that the client was given; none if it was given no name servers."""
        return list(self._servers.name_servers) if self._servers.has_name_servers else []

    async def config(self) -> dict[str, dict[str, str]]:
        """Return all settings that are in force at each name server, by address."""

        async def ask(address: str) -> dict[str, str]:
            answer = await self._servers.ask(
                address, requests.GET_NAMESRV_CONFIG, NoHeader(), what="the configuration"
            )
            return settings_of(answer.body, address)

        return await self._servers.each(self._servers.name_servers, ask, "the configuration")

    async def update_config(self, changes: Mapping[str, str]) -> list[str]:
        """Change settings of every name server; return the addresses."""
        body = format_properties(changes).encode()
        what = f"the change of {', '.join(changes)}"
        return await self._servers.change_each(
            self._servers.name_servers, requests.UPDATE_NAMESRV_CONFIG, NoHeader(), body, what=what
        )

    async def system_topics(self) -> list[str]:
        """Return the names that topics cannot have: those of clusters and brokers, and the system's."""
        _, answer = await self._servers.ask_name_server(
            requests.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoHeader(), what="the list of system topics"
        )
        return sorted(answer.body.topic_list)

    async def unit_topics(self, of: UnitTopics) -> list[str]:
        """Return topics by the unit marks of their `system_flag` (Java: TopicSysFlag)."""
        _, answer = await self._servers.ask_name_server(
            _UNIT_REQUESTS[of], NoHeader(), what="the list of unit topics"
        )
        return sorted(answer.body.topic_list)

    async def entry(self, namespace: str, key: str) -> str | None:
        """Return an entry's value, or None if there is none."""
        _, answer = await self._servers.ask_name_server(
            requests.GET_KV_CONFIG,
            GetKVConfigRequestHeader(namespace=namespace, key=key),
            what=f"the entry {key} of {namespace}",
            also=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return None if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.header.value

    async def entries(self, namespace: str) -> dict[str, str]:
        """Return all entries of a namespace."""
        _, answer = await self._servers.ask_name_server(
            requests.GET_KVLIST_BY_NAMESPACE,
            GetKVListByNamespaceRequestHeader(namespace=namespace),
            what=f"the entries of {namespace}",
            also=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return {} if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.body.table

    async def entries_by_server(self, namespace: str) -> dict[str, dict[str, str]]:
        """Return all entries of a namespace at each name server, by address.

        They are the same everywhere, unless a server was away when one changed.
        """
        what = f"the entries of {namespace}"
        return await self._servers.ask_each(
            self._servers.name_servers,
            requests.GET_KVLIST_BY_NAMESPACE,
            GetKVListByNamespaceRequestHeader(namespace=namespace),
            what=what,
            also=(ResponseCode.QUERY_NOT_FOUND,),
            read=lambda answer: (
                {} if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.body.table
            ),
        )

    async def put_entry(self, namespace: str, key: str, value: str) -> list[str]:
        """Set an entry at every name server; return the addresses."""
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        what = f"setting the entry {key} of {namespace}"
        return await self._servers.change_each(
            self._servers.name_servers, requests.PUT_KV_CONFIG, header, what=what
        )

    async def delete_entry(self, namespace: str, key: str) -> list[str]:
        """Delete an entry at every name server, if there is one; return the addresses."""
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        what = f"deleting the entry {key} of {namespace}"
        return await self._servers.change_each(
            self._servers.name_servers, requests.DELETE_KV_CONFIG, header, what=what
        )
