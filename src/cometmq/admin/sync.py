"""Provide the blocking administration client, which runs the asyncio one on a loop thread.

Each call of the asyncio rooms is listed here in one line. Its parameters, types and text are those
of the asyncio call; a test holds the two lists together.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from cometmq.admin import name_servers
from cometmq.admin.access import room as access
from cometmq.admin.brokers import room as brokers
from cometmq.admin.client import AdminClient as AsyncAdminClient
from cometmq.admin.explain.room import Explanations
from cometmq.admin.groups import offsets, producers
from cometmq.admin.groups import room as groups
from cometmq.admin.health import Health
from cometmq.admin.messages import room as messages
from cometmq.admin.room import Room
from cometmq.admin.topics import room as topics
from cometmq.client.blocking.face import BlockingFace
from cometmq.client.options import takes

P = ParamSpec("P")
T = TypeVar("T")


class _Call(Protocol):
    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


class _End:
    """Stands for the end of an iteration, where an item would stand."""


_END = _End()


class BlockingRoom:
    """Makes the calls of `room` on the client's loop thread."""

    def __init__(self, room: Room, call: _Call) -> None:
        self._room = room
        self._call = call


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingRoom, P], T]:
    @functools.wraps(method)
    def call(self: BlockingRoom, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(method(self._room, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[BlockingRoom, P], Iterator[T]]:
    @functools.wraps(method)
    def call(self: BlockingRoom, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self._room, *args, **kwargs)
        while not isinstance(item := self._call(_next(items)), _End):
            yield item

    return call


async def _next(items: AsyncIterator[T]) -> T | _End:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return _END


class BlockingTopics(BlockingRoom):
    """Makes the calls of `AdminClient.topics`, but blocks."""

    create = _blocking(topics.Topics.create)
    create_many = _blocking(topics.Topics.create_many)
    update = _blocking(topics.Topics.update)
    delete = _blocking(topics.Topics.delete)
    names = _blocking(topics.Topics.names)
    system_topics = _blocking(topics.Topics.system_topics)
    route = _blocking(topics.Topics.route)
    clusters = _blocking(topics.Topics.clusters)
    config = _blocking(topics.Topics.config)
    configs = _blocking(topics.Topics.configs)
    stats = _blocking(topics.Topics.stats)
    order_config = _blocking(topics.Topics.order_config)
    set_order_config = _blocking(topics.Topics.set_order_config)
    delete_order_config = _blocking(topics.Topics.delete_order_config)


class BlockingGroups(BlockingRoom):
    """Makes the calls of `AdminClient.groups`, but blocks."""

    create = _blocking(groups.Groups.create)
    create_many = _blocking(groups.Groups.create_many)
    update = _blocking(groups.Groups.update)
    delete = _blocking(groups.Groups.delete)
    names = _blocking(groups.Groups.names)
    configs = _blocking(groups.Groups.configs)
    config = _blocking(groups.Groups.config)
    need = _blocking(groups.Groups.need)
    of_topic = _blocking(groups.Groups.of_topic)
    topics = _blocking(groups.Groups.topics)
    subscription = _blocking(groups.Groups.subscription)
    connections = _blocking(groups.Groups.connections)
    running_info = _blocking(groups.Groups.running_info)
    member_offsets = _blocking(groups.Groups.member_offsets)
    progress = _blocking(groups.Groups.progress)
    times = _blocking(groups.Groups.times)
    may_read = _blocking(groups.Groups.may_read)
    set_may_read = _blocking(groups.Groups.set_may_read)
    popped = _blocking(groups.Groups.popped)
    set_request_mode = _blocking(groups.Groups.set_request_mode)


class BlockingOffsets(BlockingRoom):
    """Makes the calls of `AdminClient.offsets`, but blocks."""

    of_topic = _blocking(offsets.Offsets.of_topic)
    of_queue = _blocking(offsets.Offsets.of_queue)
    at_time = _blocking(offsets.Offsets.at_time)
    earliest_ms = _blocking(offsets.Offsets.earliest_ms)
    of_brokers = _blocking(offsets.Offsets.of_brokers)
    lowest = _blocking(offsets.Offsets.lowest)
    commit = _blocking(offsets.Offsets.commit)
    reset_to_time = _blocking(offsets.Offsets.reset_to_time)
    store_reset = _blocking(offsets.Offsets.store_reset)
    reset_queue = _blocking(offsets.Offsets.reset_queue)
    skip = _blocking(offsets.Offsets.skip)
    to_clone = _blocking(offsets.Offsets.to_clone)
    clone = _blocking(offsets.Offsets.clone)
    clone_at_brokers = _blocking(offsets.Offsets.clone_at_brokers)


class BlockingMessages(BlockingRoom):
    """Makes the calls of `AdminClient.messages`, but blocks."""

    dead_letters = _iterating(messages.Messages.dead_letters)
    redrive = _blocking(messages.Messages.redrive)
    redrive_letters = _blocking(messages.Messages.redrive_letters)
    resend_letter = _blocking(messages.Messages.resend_letter)
    given_up_halves = _iterating(messages.Messages.given_up_halves)
    resume_half = _blocking(messages.Messages.resume_half)
    delay_levels = _blocking(messages.Messages.delay_levels)
    in_delay_level = _blocking(messages.Messages.in_delay_level)
    timed = _blocking(messages.Messages.timed)
    halves = _blocking(messages.Messages.halves)
    end_half = _blocking(messages.Messages.end_half)
    by_id = _blocking(messages.Messages.by_id)
    by_unique_id = _blocking(messages.Messages.by_unique_id)
    by_key = _blocking(messages.Messages.by_key)
    by_offset = _blocking(messages.Messages.by_offset)
    find = _blocking(messages.Messages.find)
    stored = _iterating(messages.Messages.stored)
    stored_in = _iterating(messages.Messages.stored_in)
    units = _blocking(messages.Messages.units)
    page = _blocking(messages.Messages.page)
    recall = _blocking(messages.Messages.recall)
    tracks = _blocking(messages.Messages.tracks)
    trace = _blocking(messages.Messages.trace)
    send = _blocking(messages.Messages.send)
    resend = _blocking(messages.Messages.resend)
    consume_directly = _blocking(messages.Messages.consume_directly)


class BlockingBrokers(BlockingRoom):
    """Makes the calls of `AdminClient.brokers`, but blocks."""

    addresses = _blocking(brokers.Brokers.addresses)
    missing = _blocking(brokers.Brokers.missing)
    clusters = _blocking(brokers.Brokers.clusters)
    runtime_info = _blocking(brokers.Brokers.runtime_info)
    next_deletions = _blocking(brokers.Brokers.next_deletions)
    refusals = _blocking(brokers.Brokers.refusals)
    config = _blocking(brokers.Brokers.config)
    update_config = _blocking(brokers.Brokers.update_config)
    wipe_write_permission = _blocking(brokers.Brokers.wipe_write_permission)
    add_write_permission = _blocking(brokers.Brokers.add_write_permission)
    delete_expired_files = _blocking(brokers.Brokers.delete_expired_files)
    clean_expired_queues = _blocking(brokers.Brokers.clean_expired_queues)
    clean_unused_topics = _blocking(brokers.Brokers.clean_unused_topics)
    statistics = _blocking(brokers.Brokers.statistics)
    progress = _blocking(brokers.Brokers.progress)
    delay_offsets = _blocking(brokers.Brokers.delay_offsets)
    timer_progress = _blocking(brokers.Brokers.timer_progress)
    replication = _blocking(brokers.Brokers.replication)
    epochs = _blocking(brokers.Brokers.epochs)
    check_rocksdb_queues = _blocking(brokers.Brokers.check_rocksdb_queues)
    cold_data_thresholds = _blocking(brokers.Brokers.cold_data_thresholds)
    set_cold_data_threshold = _blocking(brokers.Brokers.set_cold_data_threshold)
    remove_cold_data_threshold = _blocking(brokers.Brokers.remove_cold_data_threshold)
    set_read_ahead = _blocking(brokers.Brokers.set_read_ahead)
    reset_master_flush_offset = _blocking(brokers.Brokers.reset_master_flush_offset)
    export_rocksdb_config = _blocking(brokers.Brokers.export_rocksdb_config)
    export_pop_records = _blocking(brokers.Brokers.export_pop_records)


class BlockingProducers(BlockingRoom):
    """Makes the calls of `AdminClient.producers`, but blocks."""

    connections = _blocking(producers.Producers.connections)
    of_brokers = _blocking(producers.Producers.of_brokers)


class BlockingNameServers(BlockingRoom):
    """Makes the calls of `AdminClient.name_servers`, but blocks."""

    addresses = _blocking(name_servers.NameServers.addresses)
    config = _blocking(name_servers.NameServers.config)
    update_config = _blocking(name_servers.NameServers.update_config)
    entry = _blocking(name_servers.NameServers.entry)
    entries = _blocking(name_servers.NameServers.entries)
    entries_by_server = _blocking(name_servers.NameServers.entries_by_server)
    put_entry = _blocking(name_servers.NameServers.put_entry)
    delete_entry = _blocking(name_servers.NameServers.delete_entry)
    system_topics = _blocking(name_servers.NameServers.system_topics)
    unit_topics = _blocking(name_servers.NameServers.unit_topics)


class BlockingAccess(BlockingRoom):
    """Makes the calls of `AdminClient.access`, but blocks."""

    create_user = _blocking(access.Access.create_user)
    update_user = _blocking(access.Access.update_user)
    delete_user = _blocking(access.Access.delete_user)
    user = _blocking(access.Access.user)
    users = _blocking(access.Access.users)
    copy_users = _blocking(access.Access.copy_users)
    create_acl = _blocking(access.Access.create_acl)
    update_acl = _blocking(access.Access.update_acl)
    delete_acl = _blocking(access.Access.delete_acl)
    acl = _blocking(access.Access.acl)
    acls = _blocking(access.Access.acls)
    copy_acls = _blocking(access.Access.copy_acls)
    put_account = _blocking(access.Access.put_account)
    delete_account = _blocking(access.Access.delete_account)
    set_white_addresses = _blocking(access.Access.set_white_addresses)
    account_files = _blocking(access.Access.account_files)


class BlockingExplanations(BlockingRoom):
    """Makes the calls of `AdminClient.explain`, but blocks."""

    group = _blocking(Explanations.group)
    message = _blocking(Explanations.message)
    write = _blocking(Explanations.write)
    disk = _blocking(Explanations.disk)
    restart = _blocking(Explanations.restart)


class BlockingHealth(BlockingRoom):
    """Makes the calls of `AdminClient.health`, but blocks."""

    findings = _blocking(Health.findings)


class AdminClient(BlockingFace, of=AsyncAdminClient):
    """Inspects and manages clusters like `cometmq.aio.AdminClient`, but blocks; `help` shows the
    text of that class below.

    Use `with` for `async with`, no `await`, and `for` for `async for`. Any thread may make the calls.
    """

    @takes(AsyncAdminClient)
    def __init__(self, asynchronous: AsyncAdminClient) -> None:
        super().__init__(asynchronous)
        self.topics = BlockingTopics(asynchronous.topics, self._call)
        self.groups = BlockingGroups(asynchronous.groups, self._call)
        self.offsets = BlockingOffsets(asynchronous.offsets, self._call)
        self.messages = BlockingMessages(asynchronous.messages, self._call)
        self.brokers = BlockingBrokers(asynchronous.brokers, self._call)
        self.producers = BlockingProducers(asynchronous.producers, self._call)
        self.name_servers = BlockingNameServers(asynchronous.name_servers, self._call)
        self.access = BlockingAccess(asynchronous.access, self._call)
        self.explain = BlockingExplanations(asynchronous.explain, self._call)
        self.health = BlockingHealth(asynchronous.health, self._call)
