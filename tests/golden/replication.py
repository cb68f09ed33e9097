"""Recordings of a Java master and a Java slave: `data/replication.json`, made by real brokers.

`python -m tests.golden.replication` writes the file again, in about a minute, with the servers of the
interop suite; `load` reads it. Each recording is one connection between a master and its slave of the
same version, with the time in ms since it was made:

| recording | what happens |
| --- | --- |
| empty | an empty slave comes to a master that has 3 messages; 5 more are sent one by one, then 12 s pass |
| again | the slave was stopped, 3 messages were sent, the slave comes again with what it has |
| last-file | an empty slave comes to a master whose log has 3 files; one message is larger than a batch |

`chunks` are what each read of the link brought: `[side, ms, bytes]`, in hex, or compressed when they are
many. Their meaning is not in the file: `tests/interop/ha_tap.py` reads it from the description of the
protocol (`load()["5.3.3", "empty"].frames()`).
"""

from __future__ import annotations

import base64
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.integration.raw_client import RawClient, send_ext
from tests.interop.ha_tap import Chunk, Connection, Tap
from tests.interop.java4 import Java4Broker
from tests.interop.peers import Java53Broker, JavaBroker, JavaNamesrv
from tests.waits import CLOCK, eventually

FILE: Final = Path(__file__).resolve().parent / "data" / "replication.json"
VERSIONS: Final = {"4.9.7": Java4Broker, "5.3.3": Java53Broker}
LOG_FILE: Final = 256 * 1024
SEND: Final = 10
EXCHANGE_HA_INFO: Final = 906
# More bytes than that are kept in a compressed form, behind this mark.
PLAIN: Final = 400
ZLIB: Final = "zlib:"
# Longer than two heartbeats.
IDLE_S: Final = 12.0


def load() -> dict[tuple[str, str], Connection]:
    """Return the recordings by version of Java and name."""
    recordings = {}
    for version, found in json.loads(FILE.read_text()).items():
        for name, recording in found.items():
            connection = recordings[version, name] = Connection(0.0)
            connection.ended_by = recording["ended_by"]
            for side, at_ms, text in recording["chunks"]:
                connection.chunks.append(Chunk(side, at_ms, _bytes(text)))
    return recordings


def main() -> None:
    """Record both versions at once and write the file."""
    with JavaNamesrv() as namesrv, ThreadPoolExecutor() as pool:
        found = pool.map(partial(_record, namesrv.address), VERSIONS)
        recordings = dict(zip(VERSIONS, found, strict=True))
        namesrv.kill()
    FILE.write_text(json.dumps(recordings, indent=1).replace(",\n     ", ", ") + "\n")


def _record(namesrv: str, version: str) -> dict[str, Any]:
    make = partial(
        VERSIONS[version],
        namesrv,
        broker_name=f"broker-{version}",
        commit_log_file_bytes=LOG_FILE,
        heap_mib=256,
    )
    with make() as master, Tap() as tap, TemporaryDirectory() as directory:
        tap.target = f"127.0.0.1:{master.port + 1}"
        conf = {"brokerId": "1", "brokerRole": "SLAVE", "haMasterAddress": tap.address}
        _send(master, 3)
        slave = make(directory=Path(directory) / "one", conf=conf)
        slave.start()
        _follow(slave, tap, master)
        empty = _recorded(tap, master, slave)
        for _ in range(5):
            _send(master, 1)
            CLOCK.sleep(0.2)
        CLOCK.sleep(IDLE_S)
        slave.stop()
        count = len(tap.connections)
        _send(master, 3)
        slave.start()
        _follow(slave, tap, master)
        again = _recorded(tap, master, slave, count)
        slave.kill()
        count = len(tap.connections)
        _send(master, 6, size=100_000)
        other = make(directory=Path(directory) / "two", conf=conf)
        other.start()
        _follow(other, tap, master)
        last_file = _recorded(tap, master, other, count)
        result = {
            "empty": _as_json(empty),
            "again": _as_json(again),
            "last-file": _as_json(last_file),
        }
        other.kill()
        master.kill()
        return result


def _follow(slave: JavaBroker, tap: Tap, master: JavaBroker) -> None:
    """Name the master once more: a slave of 5.3 loses its `haMasterAddress` while it starts."""
    if not isinstance(slave, Java4Broker):
        addresses = {"masterHaAddress": tap.address, "masterAddress": master.address}
        with RawClient(slave.address) as client:
            assert client.ask(EXCHANGE_HA_INFO, addresses).code == 0


def _send(master: JavaBroker, count: int, size: int = 20) -> None:
    with RawClient(master.address) as client:
        for number in range(count):
            body = bytes([65 + number % 26]) * size
            answer = client.ask(SEND, send_ext("replicated", properties="KEYS\x01k\x02"), body)
            assert answer.code == 0, answer


def _recorded(tap: Tap, master: JavaBroker, slave: JavaBroker, skip: int = 0) -> Connection:
    """Wait until the slave has said that it has all; return the connection."""
    connection = eventually(lambda: tap.connections[skip:])[-1]
    end = _log_end(master)
    eventually(lambda: [report.offset for report in connection.reports()][-1:] == [end])
    assert slave.process is not None
    return connection


def _log_end(broker: JavaBroker) -> int:
    with RawClient(broker.address) as client:
        table = json.loads(client.ask(28).body)["table"]
    return int(table["commitLogMaxOffset"])


def _as_json(connection: Connection) -> dict[str, Any]:
    return {
        "ended_by": connection.ended_by,
        "chunks": [[chunk.side, chunk.at_ms, _text(chunk.data)] for chunk in connection.chunks],
    }


def _text(data: bytes) -> str:
    if len(data) <= PLAIN:
        return data.hex()
    return ZLIB + base64.b64encode(zlib.compress(data, 9)).decode()


def _bytes(text: str) -> bytes:
    if text.startswith(ZLIB):
        return zlib.decompress(base64.b64decode(text.removeprefix(ZLIB)))
    return bytes.fromhex(text)


if __name__ == "__main__":
    main()
