"""Test `cometmq store` as a user calls it: output, exit status, and that nothing changes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import structlog
from tests import log_lines
from tests.golden.golden import unpack_store
from tests.unit.store.store_box import Box
from tests.waits import PROCESS_WAIT_S
from typer.testing import CliRunner

from cometmq.cli.main import app, main
from cometmq.protocol.messages.compression import compress
from cometmq.protocol.messages.record_layout import FIELDS
from cometmq.store.files.disk import Disk

NOBODY = 65534
# Another user may not be allowed to read the interpreter and the checkout, so all is imported
# before the user changes.
AS_ANOTHER = """
import contextlib, importlib, os, pkgutil, sys
import encodings.idna, javaproperties, typer.rich_utils, uvloop
import cometmq.broker, cometmq.cli.store.screen, cometmq.runtime, cometmq.store
from cometmq.cli.main import main
for room in (cometmq.broker, cometmq.runtime, cometmq.store):
    for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        importlib.import_module(module.name)
user, wanted = int(sys.argv[1]), ["cometmq", *sys.argv[2:]]
told = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
for words in (["store", "check", "/nowhere"], ["broker", "-c", "/nowhere"]):
    sys.argv = ["cometmq", *words]
    with contextlib.suppress(SystemExit):
        main()
os.dup2(told, 2)
os.setgroups([])
os.setgid(user)
os.setuid(user)
sys.argv = wanted
main()
"""
HOLDER = """
import sys, pathlib
from cometmq.store.files.disk import Disk
lock = Disk().lock(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Restore the logging: commands that run in this process choose where log lines go."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def java(tmp_path: Path) -> Path:
    return unpack_store(tmp_path)


def called(*arguments: str | Path) -> tuple[int, str]:
    """Return exit status and output of a command run in this process."""
    result = CliRunner().invoke(app, ["store", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def ended_here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return what runs a command as its process would, in this process: its status and what it wrote."""
    return partial(run_here, monkeypatch, capfd, "store")


@pytest.fixture
def broker_here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[[Path], tuple[int, str, str]]]:
    """Return what runs a broker that must fail to start, in this process: its status and what it wrote.

    Starting Python for it would take half a second. `broker` does that.
    """
    # This one stays for as long as the process.
    monkeypatch.setattr("cometmq.runtime.host.bus_errors.explain_bus_errors", lambda *_: None)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)

    def run(root: Path) -> tuple[int, str, str]:
        return run_here(monkeypatch, capfd, "broker", *options_of_broker(root))

    with log_lines.as_before():
        yield run
    resource.setrlimit(resource.RLIMIT_NOFILE, files)


def run_here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str | Path
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["cometmq", *map(str, words)])
    capfd.readouterr()
    with pytest.raises(SystemExit) as ending:
        main()
    return (int(ending.value.code or 0), *capfd.readouterr())


def ended(*arguments: str | Path, user: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command as a process of its own."""
    return process("store", *arguments, user=user)


def process(*arguments: str | Path, user: int | None = None) -> subprocess.CompletedProcess[str]:
    start = ["-m", "cometmq"] if user is None else ["-c", AS_ANOTHER, str(user)]
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def damage(root: Path) -> None:
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


def test_check_of_a_sound_store(java: Path) -> None:
    before = snapshot(java)
    status, output = called("check", java)
    assert status == 0
    assert output.splitlines()[-1] == "✓ sound"
    assert "242 records" in output
    status, output = called("check", java, "-o", "json")
    found = json.loads(output)
    assert (status, found["sound"], found["findings"]) == (0, True, [])
    assert found["commitLog"]["records"] == found["consumeQueues"]["units"] == 242
    assert snapshot(java) == before


def test_check_names_file_place_and_remedy(java: Path) -> None:
    damage(java)
    before = snapshot(java)
    status, output = called("check", java)
    assert status == 1
    assert "✗ commitlog/00000000000000000000 at 4895" in output
    assert "contradicts its CRC" in output
    assert f"cometmq store repair --write {java}" in output
    status, output = called("check", java, "-o", "json")
    first = json.loads(output)["findings"][0]
    assert first["file"] == str(java / "commitlog" / f"{0:020d}")
    assert (first["position"], first["repairedBy"]) == (4895, "repair")
    assert snapshot(java) == before


@pytest.mark.parametrize("command", ["check", "dump"])
def test_a_store_time_that_no_calendar_has_is_shown_as_a_number(java: Path, command: str) -> None:
    path = java / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at = FIELDS["store_timestamp"][0]
    data[at : at + 8] = (1 << 55).to_bytes(8, "big")
    path.write_bytes(data)
    status, output = called(command, java)
    assert status == 0
    assert str(1 << 55) in output


def test_repair_says_first_and_does_when_told(java: Path) -> None:
    damage(java)
    before = snapshot(java)
    status, output = called("repair", java)
    assert status == 1
    assert "A repair would" in output
    assert "Nothing was changed." in output
    assert snapshot(java) == before
    status, output = called("repair", "--write", java)
    assert (status, output.splitlines()[-1]) == (0, "✓ sound")
    assert called("check", java)[0] == 0
    assert len(list(java.glob("repair-*/*"))) == 1
    status, output = called("repair", "--write", java)
    assert (status, "needs no repair" in output) == (0, True)
    status, output = called("repair", java, "-o", "json")
    assert json.loads(output)["actions"] == []


def test_stats(java: Path) -> None:
    status, output = called("stats", java, "--queues")
    assert status == 0
    assert "tags: b 50" in output
    status, output = called("stats", java, "-o", "json")
    found = json.loads(output)
    assert found["messages"] == 242
    topics = {topic["topic"]: topic for topic in found["topics"]}
    assert topics["batches"]["messages"] == 50
    assert [queue["maxOffset"] for queue in topics["batches"]["queues"]] == [10, 10, 20, 10]


def test_dump(java: Path) -> None:
    status, output = called("dump", java, "--topic", "big", "--queueId", "1")
    messages = [json.loads(line) for line in output.splitlines()]
    assert status == 0
    assert [message["queueOffset"] for message in messages] == [0, 1, 2]
    # Bodies are as their producer gave them.
    assert all(len(message.get("body", "") or message["bodyBase64"]) > 1000 for message in messages)
    _, raw = called("dump", java, "--topic", "big", "--queueId", "1", "--raw")
    assert len(raw) < len(output)
    _, output = called("dump", java, "-k", "m-0", "-l", "5", "-o", "json")
    assert {json.loads(line)["keys"][0] for line in output.splitlines()} == {"m-0"}


def test_dump_leaves_out_what_is_damaged(java: Path) -> None:
    damage(java)
    result = ended("dump", java)
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == 241
    assert (
        "00000000000000000000 at 4895: a body that contradicts its CRC; left out" in result.stderr
    )


def test_dump_of_a_body_that_cannot_be_inflated(
    tmp_path: Path, ended_here: Callable[..., tuple[int, str, str]]
) -> None:
    box = Box(tmp_path / "s")
    store = box.open()
    queue = store.queue("t", 0)
    store.append(queue, compress(b"x" * 500)[:-5], b"", 0, 1, bytes(8), sys_flag=1)
    store.append(queue, compress(b"y" * 500), b"", 0, 1, bytes(8), sys_flag=1)
    store.close()
    status, output, _ = ended_here("dump", box.root)
    assert status == 1
    assert [json.loads(line)["body"] for line in output.splitlines()] == ["y" * 500]


def test_explain(java: Path) -> None:
    status, output = called("explain", java)
    assert status == 0
    assert "fileReservedTime" in output
    assert "the newest file always stays" in output
    conf = java / "broker.conf"
    conf.write_text(
        "fileReservedTime=0\ndeleteWhen=00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;"
        "16;17;18;19;20;21;22;23\n"
    )
    status, output = called("explain", java, "-c", conf, "-o", "json")
    files = json.loads(output)["files"]
    assert [file["fate"] for file in files] == ["deleted", "kept"]


def test_explain_works_while_a_broker_runs(tmp_path: Path) -> None:
    box = Box(tmp_path / "s")
    store = box.open()
    queue = store.queue("t", 0)
    store.append(queue, b"x", b"", 0, 1, bytes(8))
    assert ended("explain", box.root).returncode == 0
    assert ended("check", box.root).returncode == 2
    store.close()


@pytest.mark.parametrize("command", ["check", "stats", "dump", "repair"])
def test_a_store_in_use_is_refused(
    java: Path, command: str, ended_here: Callable[..., tuple[int, str, str]]
) -> None:
    before = snapshot(java)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(java / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        status, _, errors = ended_here(command, java)
    assert status == 2
    assert errors == f"cometmq: {java} is in use by a broker: stop it first, or work on a copy\n"
    assert {name: data for name, (data, _) in snapshot(java).items()} == {
        name: data for name, (data, _) in before.items()
    }


def test_a_broker_does_not_start_on_a_store_being_checked(java: Path) -> None:
    lock = Disk().lock_for_reading(java / "lock")
    assert lock is not None
    result = broker(java)
    lock.release()
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "is in use by another process" in result.stderr


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("missing", "does not exist: name the directory of storePathRootDir"),
        ("empty", "is no store, it has no directory commitlog"),
        ("file", "is no directory"),
        ("dledger", "is the log of a DLedger broker, which cannot be used here"),
        ("foreign", "begins with magic 0x50415231 and no file there has a message of RocketMQ"),
    ],
)
def test_what_is_no_store_is_one_sentence_and_status_2(
    tmp_path: Path, name: str, complaint: str, ended_here: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dledger/commitlog").mkdir(parents=True)
    (tmp_path / "dledger/dledger-n0").mkdir()
    another_layout(tmp_path / "foreign")
    for command in ("check", "repair", "explain"):
        status, output, errors = ended_here(command, tmp_path / name)
        assert (status, output) == (2, "")
        assert errors.startswith(f"cometmq: {tmp_path / name}")
        assert complaint in errors
        assert errors.count("\n") == 1


def broker(root: Path, user: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a broker that must fail to start on a directory, as a process of its own."""
    return process("broker", *options_of_broker(root), user=user)


def options_of_broker(root: Path) -> tuple[str | Path, ...]:
    conf = root.parent / "broker.conf"
    conf.write_text(
        f"storePathRootDir={root}\nlistenPort=0\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n"
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
    )
    conf.chmod(0o644)
    return ("-c", conf, "--log-level", "error")


def dledger(root: Path) -> None:
    (root / "dledger-n0").mkdir(parents=True)


def rocksdb(root: Path) -> None:
    (root / "consumequeue").mkdir(parents=True)
    (root / "consumequeue/CURRENT").touch()


def rocksdb_of(name: str, *, data: bool = True) -> Callable[[Path], None]:
    """Make a database as Java 5.5 leaves it, which makes an empty one for what it does not keep in it."""

    def make(root: Path) -> None:
        (root / name).mkdir(parents=True)
        (root / name / "CURRENT").write_text("MANIFEST-000005\n")
        (root / name / "000004.log").touch()
        if data:
            (root / name / "000013.sst").write_bytes(bytes(100))

    return make


def directory_for_file(root: Path) -> None:
    (root / "commitlog" / f"{0:020d}").mkdir(parents=True)


def another_size(root: Path) -> None:
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(bytes(100_000))


def another_layout(root: Path) -> None:
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(b"PAR1" * 16_384)


def a_file(root: Path) -> None:
    root.touch()


@pytest.mark.parametrize(
    ("make", "complaint", "remedy"),
    [
        (dledger, "/dledger-n0 is the log of a DLedger broker", "name another directory"),
        (rocksdb, "/consumequeue is a RocksDB", "name another directory"),
        (rocksdb_of("config/topics", data=False), "keeps topics", "mqadmin rocksDBConfigToJson"),
        (rocksdb_of("config/rdb", data=False), "configManagerVersion", "rocksDBConfigToJson"),
        (rocksdb_of("rocksdbstore"), "timerRocksDBEnable", "let a Java broker deliver what waits"),
        (rocksdb_of("kvStore"), "popConsumerKVServiceEnable", "mqadmin exportPopRecord"),
        (directory_for_file, "is a directory where a file of the commit log", "move it away"),
        (another_size, "has 100000 bytes, expected 65536", "set mappedFileSizeCommitLog to"),
        (another_layout, "begins with magic 0x50415231 and no", "move the files away"),
        (a_file, "is no directory", "name another one with storePathRootDir"),
    ],
)
def test_a_broker_leaves_what_is_no_store_of_its_own_alone(
    tmp_path: Path,
    broker_here: Callable[[Path], tuple[int, str, str]],
    make: Callable[[Path], None],
    complaint: str,
    remedy: str,
) -> None:
    root = tmp_path / "store"
    make(root)
    before = sorted(tmp_path.rglob("*"))
    status, output, errors = broker_here(root)
    assert (status, output) == (2, "")
    assert errors.startswith(f"cometmq: {root}")
    assert complaint in errors
    assert remedy in errors
    assert errors.count("\n") == 1
    (tmp_path / "broker.conf").unlink()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["check", "dump"])
def test_offline_tools_name_a_store_that_java_keeps_in_rocksdb(
    tmp_path: Path, command: str, ended_here: Callable[..., tuple[int, str, str]]
) -> None:
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    rocksdb_of("rocksdbstore")(root)
    status, _, errors = ended_here(command, root)
    assert status == 2
    assert "timerRocksDBEnable" in errors


def test_an_empty_rocksdb_as_java_makes_it_in_every_store_is_no_obstacle(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    rocksdb_of("rocksdbstore", data=False)(root)
    status, output = called("check", root)
    assert status == 0, output


def test_a_store_path_that_is_empty_is_not_the_present_directory(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("storePathRootDir=\n")
    started = process("broker", "-c", conf)
    assert (started.returncode, started.stderr) == (
        2,
        f"cometmq: {conf}: storePathRootDir= does not fit, it must be a path, it is empty (line 1)\n",
    )


def test_a_second_broker_on_the_same_store(java: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(java / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        before = snapshot(java)
        started = broker(java)
        assert (started.returncode, started.stdout) == (2, "")
        assert started.stderr == (
            f"cometmq: {java} is in use by another process: stop the broker that runs there, or "
            "set storePathRootDir to a directory of its own\n"
        )
        assert snapshot(java) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_store_of_another_user_that_has_no_message_yet(
    tmp_path: Path, broker_here: Callable[[Path], tuple[int, str, str]]
) -> None:
    box = Box(tmp_path / "s")
    box.open().close()
    for path in [box.root, *box.root.rglob("*")]:
        os.chown(path, NOBODY, -1)
    before = snapshot(box.root)
    status, _, errors = broker_here(box.root)
    assert status == 2
    assert "/checkpoint belongs to the user nobody: run as that user" in errors
    assert snapshot(box.root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_store_of_another_user(
    ended_here: Callable[..., tuple[int, str, str]],
    broker_here: Callable[[Path], tuple[int, str, str]],
) -> None:
    # Not below pytest's directory, which other users may not enter.
    base = Path("/tmp") / f"cometmq-others-{os.getpid()}"
    try:
        root = unpack_store(base)
        base.chmod(0o755)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)
        before = snapshot(root)
        result = ended("check", root, user=NOBODY)
        assert result.returncode == 2, result.stderr
        assert result.stderr.startswith(
            f"cometmq: {root} belongs to the user root and nobody may not read there: run as that "
        )
        started = broker(root, user=NOBODY)
        assert started.returncode == 2
        assert "belongs to the user root and nobody may not write there" in started.stderr
        # Root could use a user's store, but would leave files that the owner cannot write.
        for path in [root, *root.rglob("*")]:
            os.chown(path, NOBODY, -1)
        damage(root)
        before = snapshot(root)
        for status, _, errors in (ended_here("repair", "--write", root), broker_here(root)):
            assert status == 2
            assert "belongs to the user nobody: run as that user" in errors
            assert errors.count("\n") == 1
        assert snapshot(root) == before
        assert called("check", root)[0] == 1
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of its own for the test, 2 MiB large."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_read_only(small_disk: Path) -> None:
    root = unpack_store(small_disk)
    damage(root)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    before = snapshot(root)
    assert ended("check", root).returncode == 1
    repaired = ended("repair", "--write", root)
    assert repaired.returncode == 2
    assert "is on a file system that is mounted read-only: mount it read-write" in repaired.stderr
    # `broker.conf` lies beside the store.
    conf = small_disk.parent / "store"
    conf.symlink_to(root)
    started = broker(conf)
    assert started.returncode == 2
    assert "mounted read-only" in started.stderr
    assert started.stderr.count("\n") == 1
    assert snapshot(root) == before


def test_a_disk_that_is_full(small_disk: Path) -> None:
    root = unpack_store(small_disk)
    damage(root)
    (small_disk / "ballast").write_bytes(bytes(1_000_000))
    before = snapshot(root)
    repaired = ended("repair", "--write", root)
    assert repaired.returncode == 2
    assert "bytes free, a start needs 1048576; free space there" in repaired.stderr
    link = small_disk.parent / "store"
    link.symlink_to(root)
    started = broker(link)
    assert started.returncode == 2
    assert started.stderr.count("\n") == 1
    assert snapshot(root) == before


def test_slice_makes_a_store_that_check_accepts_and_says_what_it_has(
    java: Path, tmp_path: Path
) -> None:
    before = snapshot(java)
    target = tmp_path / "slice"
    status, output = called("slice", java, target, "--from", "20000", "--to", "40000")
    assert status == 0
    assert "✓ sound; a broker on it needs these settings:" in output
    assert f"  storePathRootDir={target}" in output
    assert snapshot(java) == before
    status, output = called("check", target, "-o", "json")
    checked = json.loads(output)["commitLog"]
    assert status == 0
    other = tmp_path / "other"
    status, output = called("slice", java, other, "--from", "20000", "--to", "40000", "-o", "json")
    made = json.loads(output)
    assert status == 0
    assert 20000 <= made["fromOffset"] < made["toOffset"] < 42000
    assert made["toOffset"] == checked["maxOffset"]
    # The check counts the record in front, which no queue has, too.
    assert made["records"] == checked["records"] - 1
    assert sum(queue["messages"] for queue in made["queues"]) == made["records"]


def test_slice_of_a_topic_and_of_times(java: Path, tmp_path: Path) -> None:
    _, output = called("stats", java, "--queues", "-o", "json")
    topic = json.loads(output)["topics"][0]
    last = str(topic["lastStoreTimestamp"])
    status, output = called(
        "slice", java, tmp_path / "s", "-t", topic["topic"], "-b", last, "-o", "json"
    )
    made = json.loads(output)
    assert status == 0
    assert made["firstStoreTimestamp"] == made["lastStoreTimestamp"] == int(last)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "9", "--to", "9"], "the part from 9 to 9 is empty"),
        (["-t", "nobody"], "the store has no topic nobody; it has "),
        (["-b", "yesterday"], "--beginTime yesterday is no time"),
        (["-i", "3"], "queue 3 is of no topic"),
    ],
)
def test_slice_names_bad_input_and_makes_nothing(
    java: Path,
    tmp_path: Path,
    arguments: list[str],
    said: str,
    ended_here: Callable[..., tuple[int, str, str]],
) -> None:
    status, _, errors = ended_here("slice", java, tmp_path / "slice", *arguments)
    assert status == 2
    assert said in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "slice").exists()


def test_slice_refuses_a_target_that_has_something(
    java: Path, tmp_path: Path, ended_here: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    status, _, errors = ended_here("slice", java, tmp_path / "full")
    assert status == 2
    assert "is not empty, it has mine" in errors
    assert "lie in each other" in ended_here("slice", java, java / "inside")[2]
