"""Run a cluster's servers in virtual time, each on a node of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cometmq.broker.config import broker_configs
from cometmq.broker.server import Broker
from cometmq.errors import CometMQError
from cometmq.namesrv.config import namesrv_configs
from cometmq.namesrv.server import NameServer
from cometmq.runtime.surroundings import files_of
from cometmq.store.queues.consume_queue import UNIT, UNIT_SIZE
from cometmq.testing.accounts import access_properties
from cometmq.testing.faults import Damage
from cometmq.testing.servers import (
    HA_PORT_DISTANCE,
    BrokerPlaces,
    ClusterPlan,
    all_registered,
)
from cometmq.testing.virtual.errors import NodeKilledError
from cometmq.testing.virtual.node import Node
from cometmq.testing.virtual.storage.disk import VirtualDisk
from cometmq.testing.virtual.wire.network import VirtualNetwork
from cometmq.testing.virtual.world import World

# The same on every disk, under the name of the server.
_DIRECTORY: Final = Path("/cometmq")
_NAME_SERVER_PORT: Final = 9876
_BROKER_PORT: Final = 10911
_ALL_NODES: Final = "10.0.0.0/8"
# Files are small, because their mappings are made, and their pages touched, in each run.
_FOR_SIMULATIONS: Final = {
    "mappedFileSizeCommitLog": str(256 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 500),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "cleanResourceInterval": "60000",
    # A node is a machine of its own, and tests administrate the cluster from theirs.
    "adminFrom": _ALL_NODES,
}


class VirtualServers:
    """Runs name servers and brokers on the nodes of a world.

    A node lives until it is killed; `restart` makes a new one with its name, address and disk. A
    server that was stopped or killed stays in `servers` until it is started again.
    """

    def __init__(self, world: World, plan: ClusterPlan) -> None:
        self.world = world
        self._plan = plan
        self._names = plan.name_server_names()
        self._running: dict[str, Broker | NameServer] = {}
        # Flipped bits of each server's disk that its next process reads: file and offset in bits.
        self._flipped: dict[str, list[tuple[Path, int]]] = {}
        # Servers that are being started or stopped.
        self._changing: set[str] = set()
        self._starting: set[str] = set()
        self.places = BrokerPlaces(plan)
        self.servers: dict[str, Broker | NameServer] = {}

    @property
    def network(self) -> VirtualNetwork:
        return self.world.network

    @property
    def namesrv(self) -> str:
        return ";".join(f"{self.node(name).host}:{_NAME_SERVER_PORT}" for name in self._names)

    @property
    def directory(self) -> Path:
        return _DIRECTORY

    def node(self, name: str) -> Node:
        return self.world.node(name)

    def is_running(self, name: str) -> bool:
        """Say whether a server is started, and neither stopped nor killed; it may be paused."""
        return name in self._running

    # Start and stop

    async def start(self) -> None:
        try:
            for name in self._names:
                self.servers[name] = await self._new_name_server(name)
            for name in self.places.names():
                self.servers[name] = await self._new_broker(name)
            if "namesrvAddr" not in self._plan.properties:
                await all_registered(self)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        self._end_faults()
        for name in [*self.places.names(), *self._names]:
            await self.stop_server(name)
        self.servers.clear()

    def _end_faults(self) -> None:
        """Let all servers that run stop cleanly."""
        self.network.heal_all()
        for name in self._running:
            self.node(name).disk.mend()
            self.resume(name)

    async def stop_server(self, name: str) -> None:
        server = self._running.pop(name, None)
        if server is not None:
            self.resume(name)
            self._changing.add(name)
            try:
                await self.node(name).run_in(server.close())
            except NodeKilledError:
                pass
            except CometMQError as error:
                # As a process that ends with an error: a disk that failed takes no last writes.
                self.world.record(f"stopped with an error: {error}", name)
                self.kill(name)
            finally:
                self._changing.discard(name)

    async def start_server(self, name: str) -> None:
        """Start a server that does not run, on a new node if the former one was killed."""
        if self.node(name).is_killed:
            self.network.power_on(name)
            self.world.restart(name)
        try:
            if name in self._names:
                self.servers[name] = await self._new_name_server(name)
            elif name in self.places.names():
                self.servers[name] = await self._new_broker(name)
        except CometMQError:
            self.kill(name)  # its process ends with the error
            raise

    async def _new_name_server(self, name: str) -> NameServer:
        node, directory = self.node(name), self.directory / name
        properties = {
            "listenPort": str(_NAME_SERVER_PORT),
            "bindAddress": node.host,
            "adminFrom": _ALL_NODES,
            # Each node is a host of its own.
            "protectedMode": "false",
            "kvConfigPath": str(directory / "kvConfig.json"),
            "configStorePath": str(directory / "namesrv.properties"),
            **self._plan.namesrv_properties,
        }
        configs = namesrv_configs(properties, source="namesrv_properties")

        async def started() -> NameServer:
            server = NameServer(*configs)
            await server.start()
            return server

        self._running[name] = server = await node.run_in(started())
        return server

    async def _new_broker(self, name: str) -> Broker:
        node = self.node(name)
        defaults = {
            **_FOR_SIMULATIONS,
            "brokerIP1": node.host,
            "bindAddress": node.host,
            "namesrvAddr": self.namesrv,
            "vipChannelEnable": "false",
            # Each node is a host of its own.
            "protectedMode": "false",
            "storePathRootDir": str(self.directory / name),
            "haListenPort": str(_BROKER_PORT + HA_PORT_DISTANCE),
        }
        home = self.directory / "accounts" / name
        defaults |= access_properties(home, self._plan.accounts, files_of(node.disk))
        properties = {**self.places.properties(name, defaults), "listenPort": str(_BROKER_PORT)}
        configs = broker_configs(properties, source="properties")
        self._read_flipped(name)

        async def started() -> Broker:
            broker = Broker(*configs, disk=node.disk)
            await broker.start()
            return broker

        self._changing.add(name)
        try:
            self._running[name] = server = await node.run_in(started())
        finally:
            self._changing.discard(name)
        return server

    # Faults of nodes

    def kill(self, name: str) -> None:
        if self._die(name):
            self.network.kill(name)
            self.node(name).disk.crash_process()

    def power_off(self, name: str) -> None:
        if self._die(name):
            self.network.power_off(name)
            self.node(name).disk.lose_power()

    def wipe(self, name: str) -> None:
        self.power_off(name)
        self.node(name).disk.wipe()

    def _die(self, name: str) -> bool:
        """End what runs on a node. Return False if it is down already."""
        node = self.node(name)
        self._running.pop(name, None)
        if node.is_killed:
            return False
        node.kill()
        return True

    def pause(self, name: str) -> None:
        node = self.node(name)
        if not node.is_paused and not node.is_killed:
            node.pause()

    def resume(self, name: str) -> None:
        node = self.node(name)
        if node.is_paused and not node.is_killed:
            node.resume()

    async def restart(self, name: str) -> None:
        if name in self._starting:
            return
        self._starting.add(name)
        try:
            await self.stop_server(name)
            await self.start_server(name)
        finally:
            self._starting.discard(name)

    def damage_state(self, name: str, file: str, how: Damage) -> None:
        """Damage a state file of a broker that has a backup of it."""
        disk = self.node(name).disk
        path = self.directory / name / "config" / file
        if disk.size(path) and disk.size(path.with_name(f"{file}.bak")) is not None:
            disk.damage(path, _DAMAGES[how])

    def flip_bit(self, name: str, path: str, offset: int) -> None:
        """Flip a bit on the disk of a node, in the files below `path`, which is relative to its store.

        `offset` counts the bits of what was written to them, and goes on with the first file behind
        the last one. As with any disk, a process finds in memory what it has written itself: the next
        one reads the flipped bit.
        """
        disk = self.node(name).disk
        written = list(_written(disk, self.directory / name / path))
        bits = 8 * sum(len(data) for _, data in written)
        if bits == 0:
            raise ValueError(f"{name} has written nothing below {path} yet")
        offset %= bits
        for file, data in written:
            if offset < 8 * len(data):
                if self._is_in_memory(name, file, data, offset // 8):
                    self._flipped.setdefault(name, []).append((file, offset))
                else:
                    disk.flip_bit(file, offset // 8, offset % 8)
                return
            offset -= 8 * len(data)

    def _is_in_memory(self, name: str, file: Path, data: bytes, position: int) -> bool:
        """Say whether the running broker, if there is one, has or may have written the byte at `position`
        of a file of its log or of a queue, so that memory has it.
        """
        broker = self._running.get(name)
        if not isinstance(broker, Broker):
            return name in self._changing
        if "commitlog" in file.parts:
            return int(file.name) + position >= broker.store.own_from
        if "consumequeue" in file.parts:
            start = position - position % UNIT_SIZE
            place, _, _ = UNIT.unpack(data[start : start + UNIT_SIZE].ljust(UNIT_SIZE, b"\0"))
            return bool(place >= broker.store.own_from)
        return False

    def _read_flipped(self, name: str) -> None:
        """Let the next process of a server read the bits that were flipped while the last one had them in
        memory, as far as the disk still has those bytes.
        """
        disk = self.node(name).disk
        with disk.at_peace():
            for file, bit in self._flipped.pop(name, []):
                for _, data in _written(disk, file):
                    if bit < 8 * len(data):
                        disk.flip_bit(file, bit // 8, bit % 8)


def _other_digit(data: bytearray) -> bytearray:
    place = next((at for at in range(len(data) - 64, 0, -1) if chr(data[at]).isdecimal()), 0)
    data[place] ^= 1
    return data


_DAMAGES: Final[dict[Damage, Callable[[bytearray], bytearray]]] = {
    "empty": lambda _: bytearray(),
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytearray(len(data)),
    "digit": _other_digit,
}


def _written(disk: VirtualDisk, path: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files at or below `path` that are not all zero, each with its bytes up to the last one
    that is not.
    """
    if disk.is_directory(path):
        for name in disk.names(path):
            yield from _written(disk, path / name)
    elif disk.size(path) is not None and (data := disk.read(path).rstrip(b"\0")):
        yield path, data
