"""Regenerates `data/`: `python -m tests.golden.generate` from the repository root.

Needs Java, Maven and the package registry. Runs the Java generator (`java/`) against the 5.x and
4.9 artifacts, then a real name server and broker to fill a store directory, and writes one
`manifest.json`. A 4.9 file that equals its 5.x twin is left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.golden import sql92
from tests.interop.clients import JavaClient
from tests.interop.peers import Java53Broker, Java53Namesrv, require_tools

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
PROJECT = HERE / "java"

VERSIONS = {"5": "5.3.3", "4": "4.9.8"}

# Records carry the time of generation, and their 4.9 layout is the same.
KINDS_OF_5_ONLY = {"record", "records", "commit-log-file", "consume-queue"}

# The 4.9 store unmaps its files through these packages of the Java library.
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref")

STORE_CONF = {
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "flushConsumerOffsetInterval": "500",
}
STORE_COMMIT_LOG_FILE_BYTES = 65536
CONFIG_FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")

Entry = dict[str, Any]


def main() -> None:
    """Write all of `data/` again."""
    require_tools("java", "mvn")
    subprocess.run(["mvn", "-B", "-q", "-ntp", "package"], cwd=PROJECT, check=True)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        data = scratch / "data"
        data.mkdir()
        entries = _run_generator("5", scratch)
        known = {entry["name"]: entry for entry in entries}
        for entry in _run_generator("4", scratch):
            if entry["kind"] not in KINDS_OF_5_ONLY and not _same(entry, known, scratch):
                entries.append(entry)
        for entry in entries:
            if "file" in entry:
                target = data / entry["file"]
                target.parent.mkdir(exist_ok=True)
                shutil.copy(scratch / entry["file"], target)
        entries += _fill_store(scratch, data)
        (data / sql92.FILE.name).write_text(sql92.generate())
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        (data / "manifest.json").write_text(f"[\n{lines}\n]\n")
        shutil.rmtree(DATA, ignore_errors=True)
        shutil.copytree(data, DATA)
    sys.stdout.write(f"{len(entries)} entries in {DATA}\n")


def _run_generator(line: str, scratch: Path) -> list[Entry]:
    module = PROJECT / f"golden{line}" / "target"
    classpath = f"{module / 'classes'}:{(module / 'classpath.txt').read_text().strip()}"
    opens = [part for name in OPENED for part in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")]
    command = ["java", *opens, f"-Duser.home={scratch}", "-cp", classpath]
    command += ["cometmq.golden.Generate", str(scratch), VERSIONS[line]]
    subprocess.run(command, cwd=scratch, stdout=subprocess.DEVNULL, check=True)
    entries: list[Entry] = json.loads((scratch / f"java{line}" / "manifest.json").read_text())
    return entries


def _same(entry: Entry, known: dict[str, Entry], scratch: Path) -> bool:
    twin = known.get(entry["name"])
    if twin is None:
        return False
    if "file" not in entry:
        return bool(twin["input"] == entry["input"])
    ours, theirs = (scratch / str(one["file"]) for one in (entry, twin))
    return ours.read_bytes() == theirs.read_bytes()


def _fill_store(scratch: Path, data: Path) -> list[Entry]:
    """Let a real broker write a store, pack it into `data`, and describe its messages."""
    client = JavaClient(5)
    store = scratch / "store"
    messages: list[Entry] = []
    conf = STORE_CONF
    with (
        Java53Namesrv() as namesrv,
        Java53Broker(
            namesrv.address,
            store=store,
            commit_log_file_bytes=STORE_COMMIT_LOG_FILE_BYTES,
            conf=conf,
        ) as broker,
    ):
        base: dict[str, object] = {"namesrv": namesrv.address}
        tags = "paid,shipped,标签"
        client.produce(**base, topic="orders", mode="sync", count=60, size=200, tags=tags)
        client.produce(**base, topic="orders", mode="sync", count=110, size=50, queue=1, first=60)
        client.produce(**base, topic="batches", mode="batch", count=50, size=300, tags="b")
        client.produce(**base, topic="big", mode="async", count=12, size=6000, tags="zlib")
        JavaClient(4).produce(**base, topic="from-4", mode="sync", count=10, size=100, tags="x")
        client.run("consume", **base, topic="orders", group="audit", expected=170)
        client.run("consume", **base, topic="big", group="audit-big", expected=12)
        for topic in ("orders", "batches", "big", "from-4"):
            messages += client.pull(**base, topic=topic)
        broker.stop()
    (data / "config").mkdir()
    for name in CONFIG_FILES:
        shutil.copy(store / "config" / name, data / "config" / name)
    with tarfile.open(data / "store.tar.gz", "w:gz") as archive:
        archive.add(store, arcname="store")
    for message in messages:
        del message["event"]
    what = {
        "artifact": VERSIONS["5"],
        "class": "org.apache.rocketmq.broker.BrokerStartup",
    }
    conf = {"mappedFileSizeCommitLog": str(STORE_COMMIT_LOG_FILE_BYTES), **conf}
    entries: list[Entry] = [
        {"kind": "config", "name": f"config-{name}", "file": f"config/{name}", **what, "input": {}}
        for name in CONFIG_FILES
    ]
    entries.append(
        {
            "kind": "store",
            "name": "store",
            "file": "store.tar.gz",
            **what,
            "input": {"conf": conf, "stopped": "cleanly", "messages": messages},
        }
    )
    return entries


if __name__ == "__main__":
    main()
