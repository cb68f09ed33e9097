"""Define the parts that the services of a broker share, and the class of services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.access.config import AccessConfig
from cometmq.broker.config import BrokerConfig
from cometmq.broker.filters.predicates import FilterPredicates
from cometmq.broker.filters.property_filters import PropertyFilters
from cometmq.broker.filters.work import FilterWork
from cometmq.broker.groups.clients import ClientManager
from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.broker.long_answer import LongAnswers
from cometmq.broker.pulls.waiting import Waiting
from cometmq.broker.storage.flushing import CommitLogFlusher
from cometmq.broker.topics.topics import TopicManager
from cometmq.remoting.dispatch import Handlers
from cometmq.replication.config import ReplicationConfig
from cometmq.runtime.clock import Clock
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.state_files.files import Files
from cometmq.runtime.state_files.state_writer import StateWriter
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import Workers
from cometmq.store.files.disk import Disk
from cometmq.store.store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Holds what the services of one broker share. Nothing in it is replaced while the broker runs.

    The store is open. `address` is where clients reach the broker; `packed_host` is its form in
    message ids. `clock` never goes back.
    """

    config: BrokerConfig
    access: AccessConfig
    replication: ReplicationConfig
    clock: Clock
    randomness: Randomness
    disk: Disk
    # Where the state files lie.
    files: Files
    workers: Workers
    tasks: TaskOwner
    state: StateWriter
    handlers: Handlers
    address: str
    packed_host: bytes
    store: MessageStore
    flusher: CommitLogFlusher
    topics: TopicManager
    groups: GroupManager
    offsets: ConsumerOffsetManager
    clients: ClientManager
    waiting: Waiting
    filter_work: FilterWork
    filters: PropertyFilters
    predicates: FilterPredicates
    long_answers: LongAnswers


class Service:
    """One capability of a broker. `server.py` makes the services one after the other.

    Each is made of `Parts` and of services that are open already. All are open before the first is
    started, and all are started before the broker listens. They are closed in reverse order, when
    no request is served and no task runs any more, while store and state files can still be written.

    A service that writes messages to the log is neither opened nor started on a slave:
    `runs_on_slave` is False. Rows of the request table name the requests that it does not serve then.
    """

    runs_on_slave: ClassVar[bool] = True

    async def open(self) -> None:
        """Read the state that the disk has, and register the handlers."""

    def start(self) -> None:
        """Begin what happens by itself."""

    def close(self) -> None:
        """End threads, and write down what the next start needs."""
