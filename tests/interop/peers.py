"""The peers of the interop suite: Java servers and the client programs in Java, Go, Node, Rust and C++.

Needs the standard library, `tests.class_archives` and `tests.maven_jars` only, so that `tests/` and `benchmarks/`
can both import it as `tests.interop.peers` with the repository root on `sys.path`.

A peer is built on first use by its own package manager; what it builds lies in git-ignored
`target/`, `node_modules/` and `.cache/` directories. A missing tool raises `ToolchainMissingError`
with a sentence that names it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.class_archives import archive_file, archive_options
from tests.maven_jars import MAVEN, one_maven

from cometmq.testing.ports import HeldPort

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "interop"
JAVA_PROJECT = HERE / "java"
GO_PROJECT = HERE / "go"
NODE_PROJECT = HERE / "node"
CPP_PROJECT = HERE / "cpp"
GRPC_PROJECT = HERE / "grpc"

# The newest Java, which takes part in all tests. Another one does where it differs.
NEWEST_JAVA = re.findall(
    "<rocketmq5.version>(.+)</rocketmq5.version>", (JAVA_PROJECT / "pom.xml").read_text()
)[0]

HOST = "127.0.0.1"
DEFAULT_HEAP_MIB = 512
# What lives for seconds gains from a quick compiler, two cores from a serial collector, and a start
# from classes, all published ones, whose bytecode is not verified. The export is that of Java's own
# start script: brokers need it to set the read-ahead of files.
QUICK_JAVA = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    # It would be a file in /tmp, which a JVM that is killed leaves there.
    "-XX:-UsePerfData",
    # By default a server makes RSA keys at its start, in case that a client wants TLS: the larger part of the
    # start of a name server. Servers that talk TLS (`tests.interop.guarded`) set another mode after this one.
    "-Dtls.server.mode=disabled",
)
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 120.0
BUILD_TIMEOUT_S = 900.0
BUILD_ATTEMPTS = 3
BUILD_PAUSE_S = 10.0

_UPDATE_BROKER_CONFIG = 25
GET_BROKER_RUNTIME_INFO = 28
_GET_BROKER_CLUSTER_INFO = 106

_TOOL_HINTS = {
    "java": "a Java runtime (`java`, 11 or newer)",
    "mvn": "Apache Maven (`mvn`)",
    "go": "the Go toolchain (`go`, 1.21 or newer)",
    "node": "Node.js (`node`, 18 or newer)",
    "npm": "npm (`npm`)",
    "cargo": "Rust (`cargo`)",
    "cc": "a C compiler (`cc`)",
}


class ToolchainMissingError(RuntimeError):
    """A program that the peer needs is not installed; the text says which."""


class PeerError(RuntimeError):
    """A peer did not build, start, stop or answer as it should; the text holds its last output."""


# Toolchains and builds ---------------------------------------------------------------------------


def missing_tools(*names: str) -> str | None:
    """One sentence naming the tools that are not on PATH, or None when all of them are."""
    missing = [_TOOL_HINTS[name] for name in names if shutil.which(name) is None]
    if not missing:
        return None
    return f"not installed: {', '.join(missing)}"


def require_tools(*names: str) -> None:
    """Raise `ToolchainMissingError` unless every tool is on PATH."""
    sentence = missing_tools(*names)
    if sentence is not None:
        raise ToolchainMissingError(sentence)


def java_classpath(module: str) -> str:
    """Class path of one Maven module (see `java/pom.xml`), built when needed."""
    require_tools("java", "mvn")
    target = JAVA_PROJECT / module / "target"
    classpath = target / "classpath.txt"
    with _build_once("java", JAVA_PROJECT, ("*.java", "pom.xml"), classpath) as needed:
        if needed:
            with one_maven():
                _run_build([*MAVEN, "package"], JAVA_PROJECT)
    # Archives of classes want a path of jars only.
    return f"{target / f'{module}-1.jar'}:{classpath.read_text().strip()}"


def archive_of(module: str, main_class: str) -> Path | None:
    """The file that the archive of the classes of a quick JVM of this module belongs in, None without Java."""
    label = f"{module}-{main_class.rpartition('.')[2]}"
    return archive_file(label, java_classpath(module), main_class)


def java_command(module: str, main_class: str, flags: Sequence[str]) -> list[str]:
    """The command line up to the arguments of the main class. A quick JVM starts with its archive of classes, if
    there is one: `tests.interop.loaded_classes`.
    """
    archive = archive_of(module, main_class) if set(QUICK_JAVA) <= set(flags) else None
    options = archive_options(archive)
    return ["java", *flags, *options, "-cp", java_classpath(module), main_class]


def go_binary() -> Path:
    """The Go client program, built when needed."""
    require_tools("go")
    binary = CACHE / "goclient"
    with _build_once("go", GO_PROJECT, ("*.go", "go.mod", "go.sum"), binary) as needed:
        if needed:
            _run_build(["go", "build", "-o", str(binary), "."], GO_PROJECT)
    return binary


def node_program() -> Path:
    """The Node client program, its packages installed when needed."""
    require_tools("node", "npm")
    installed = NODE_PROJECT / "node_modules" / ".package-lock.json"
    with _build_once("node", NODE_PROJECT, ("package*.json",), installed) as needed:
        if needed:
            _run_build(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], NODE_PROJECT)
    return NODE_PROJECT / "client.js"


def cpp_directory() -> Path:
    """The directory with the C++ client's library and its Python face, installed when needed.

    It is none of the tests' own packages: `rocketmq` would be a name that CometMQ's users see.
    """
    if (sentence := missing_cpp()) is not None:
        raise ToolchainMissingError(sentence)
    directory = CACHE / "cpp"
    library = directory / "rocketmq" / "librocketmq.so"
    with _build_once("cpp", CPP_PROJECT, ("requirements.txt",), library) as needed:
        if needed:
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            hashes = ("--require-hashes", "-r", str(CPP_PROJECT / "requirements.txt"))
            _run_build(
                [*pip, "--no-deps", "--upgrade", "--target", str(directory), *hashes], CPP_PROJECT
            )
    return directory


def grpc_directory() -> Path:
    """The directory with RocketMQ's Python client for gRPC and all that it needs, installed when needed.

    Its pins are its own, and its name is the C++ client's.
    """
    directory = CACHE / "grpc"
    client = directory / "rocketmq" / "v5" / "__init__.py"
    with _build_once("grpc", GRPC_PROJECT, ("requirements.txt",), client) as needed:
        if needed:
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            hashes = ("--require-hashes", "-r", str(GRPC_PROJECT / "requirements.txt"))
            _run_build(
                [*pip, "--no-deps", "--upgrade", "--target", str(directory), *hashes], GRPC_PROJECT
            )
    return directory


def grpc_node_program() -> Path:
    """The program over RocketMQ's Node.js client for gRPC, its packages installed when needed."""
    require_tools("node", "npm")
    project = GRPC_PROJECT / "node"
    installed = project / "node_modules" / ".package-lock.json"
    with _build_once("grpc-node", project, ("package*.json",), installed) as needed:
        if needed:
            _run_build(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], project)
    return project / "client.js"


def grpc_go_binary() -> Path:
    """The program over RocketMQ's Go client for gRPC, built when needed."""
    require_tools("go")
    project = GRPC_PROJECT / "go"
    binary = CACHE / "grpc-goclient"
    with _build_once("grpc-go", project, ("*.go", "go.mod", "go.sum"), binary) as needed:
        if needed:
            _run_build(["go", "build", "-o", str(binary), "."], project)
    return binary


def grpc_rust_binary() -> Path:
    """The program over RocketMQ's Rust client, built when needed: two minutes of a processor."""
    require_tools("cargo")
    project = GRPC_PROJECT / "rust"
    target = CACHE / "grpc-rust"
    binary = target / "debug" / "grpcrust"
    with _build_once("grpc-rust", project, ("*.rs", "Cargo.*"), binary) as needed:
        if needed:
            flags = ("--locked", "--quiet", "--target-dir", str(target))
            _run_build(["cargo", "build", *flags], project)
    return binary


def missing_cpp() -> str | None:
    """One sentence saying why the C++ client cannot run here, or None: its library is a binary."""
    found = f"{platform.system()} {platform.machine()}"
    if found == "Linux x86_64":
        return None
    return f"the C++ client is published for Linux x86_64 only, this is {found}"


def with_rust() -> bool:
    """Whether the Rust client takes part: COMETMQ_RUST=0 leaves it out, as it takes long to compile."""
    return os.environ.get("COMETMQ_RUST") != "0"


def build_all(*kinds: str) -> None:
    """Build the peers of these kinds, or of all, whose tools are there: no test waits for downloads."""
    kinds = kinds or ("java", "go", "node", "cpp", "grpc", *(("rust",) if with_rust() else ()))
    if "java" in kinds and missing_tools("java", "mvn") is None:
        java_classpath("server")  # and all other modules with it
    if "go" in kinds and missing_tools("go") is None:
        go_binary()
        grpc_go_binary()
    if "node" in kinds and missing_tools("node", "npm") is None:
        node_program()
        grpc_node_program()
    if "rust" in kinds and missing_tools("cargo") is None:
        grpc_rust_binary()
    if "cpp" in kinds and missing_cpp() is None:
        cpp_directory()
    if "grpc" in kinds:
        grpc_directory()


@contextlib.contextmanager
def _build_once(name: str, project: Path, patterns: Sequence[str], product: Path) -> Iterator[bool]:
    """Hold the build lock of a project; yield whether its sources changed since the last build.

    The lock is a file lock: test processes and a benchmark may ask at the same time.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    stamp = CACHE / f"{name}.stamp"
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        digest = _digest(project, patterns)
        needed = not (product.exists() and stamp.exists() and stamp.read_text() == digest)
        yield needed
        if needed:
            stamp.write_text(digest)


def _digest(project: Path, patterns: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(project.rglob(pattern)):
            if "target" not in path.parts and "node_modules" not in path.parts:
                digest.update(str(path.relative_to(project)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _run_build(command: Sequence[str], project: Path) -> None:
    """Most of a build are downloads, so it gets another chance, and goes on where it was."""
    said = ""
    for attempt in range(BUILD_ATTEMPTS):
        time.sleep(attempt * BUILD_PAUSE_S)
        try:
            done = subprocess.run(
                command,
                cwd=project,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = f"no end within {error.timeout:g} s"
            continue
        if done.returncode == 0:
            return
        said = done.stdout[-4000:]
    raise PeerError(f"`{' '.join(command)}` failed in {project}:\n{said}")


# Ports and raw requests --------------------------------------------------------------------------


# Until this process ends: a server that is stopped comes back on its port.
_held = contextlib.ExitStack()
atexit.register(_held.close)


def free_port() -> int:
    """A port of the loopback address that nobody else is given."""
    return _held.enter_context(HeldPort()).port


def free_broker_port() -> int:
    """A listen port P that is held with its neighbours P-2 (fast port) and P+1 (replication)."""
    return _held.enter_context(HeldPort((-2, 1))).port


def ask(
    address: str,
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Send one request to `host:port`; return the response code and body."""
    host, _, port = address.rpartition(":")
    header = {"code": code, "flag": 0, "language": "OTHER", "opaque": 1, "version": 479}
    header["extFields"] = dict(ext or {})
    encoded = json.dumps(header).encode()
    frame = struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body
    plain = socket.create_connection((host, int(port)), timeout=20)
    with plain if tls is None else tls.wrap_socket(plain, server_hostname=host) as connection:
        connection.sendall(frame)
        length, header_length = struct.unpack(">ii", _read_exactly(connection, 8))
        payload = _read_exactly(connection, length - 4)
    answer = json.loads(payload[: header_length & 0xFFFFFF])
    return int(answer["code"]), payload[header_length & 0xFFFFFF :]


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError(f"peer closed after {len(received)} of {size} bytes")
        received += chunk
    return bytes(received)


def broker_registered(
    namesrv: str, broker_name: str, tls: ssl.SSLContext | None = None, *, address: str = ""
) -> bool:
    """Whether the cluster info of each name server (`;` between them) lists the broker.

    A master and its slaves share a name, so a broker that may have some is looked for by its address.
    """
    wanted = f'"{address or broker_name}"'.encode()
    try:
        answers = [
            ask(address, _GET_BROKER_CLUSTER_INFO, tls=tls) for address in namesrv.split(";")
        ]
    except OSError:
        return False
    return all(code == 0 and wanted in body for code, body in answers)


# Java servers ------------------------------------------------------------------------------------

_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %t %c - %m%n</pattern></encoder>
  </appender>
  <root level="LEVEL"><appender-ref ref="out"/></root>
</configuration>
"""


class JavaServer:
    """One JVM with its own home, configuration and log in `directory`. A context manager.

    Its log is `directory/<name>.log`. `stop` is a clean stop (SIGTERM runs the shutdown hook),
    `kill` is SIGKILL. After either, `start` starts it again on the same files and ports. At the end
    of its context it is killed, as a clean stop takes a Java broker ten seconds: a test whose next
    step reads its store stops it first. `module` is the Maven module that it comes from, `tls` how to
    talk to it where it wants TLS.
    """

    main_class: str
    name: str
    module = "server"
    tls: ssl.SSLContext | None = None

    def __init__(
        self,
        *,
        directory: Path | None = None,
        heap_mib: int = DEFAULT_HEAP_MIB,
        jvm_flags: Sequence[str] = QUICK_JAVA,
        log_level: str = "ERROR",
    ) -> None:
        self._owns_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"java-{self.name}-"))
        self.heap_mib = heap_mib
        self.jvm_flags = list(jvm_flags)
        self.log_level = log_level
        self.process: subprocess.Popen[bytes] | None = None
        self.start_seconds = 0.0
        self._peak_kib = 0

    @property
    def _temporary(self) -> Path:
        """The server's temporary files: a JVM that is killed leaves 12 MB of libraries there."""
        return self.directory / "tmp"

    @property
    def log_path(self) -> Path:
        """Everything the JVM printed and logged."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Process id of the running JVM."""
        assert self.process is not None, "the server is not running"
        return self.process.pid

    @property
    def peak_memory_kib(self) -> int:
        """Peak resident memory (VmHWM) so far in KiB; after a stop, the last value seen."""
        if self.process is not None:
            self._peak_kib = peak_memory_kib(self.process.pid) or self._peak_kib
        return self._peak_kib

    def config(self) -> dict[str, str]:
        """The properties file passed with -c."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether the server answers."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The process's environment beside the usual."""
        return {}

    def command(self, home: Path, logback: Path, conf: Path) -> list[str]:
        """The command line that starts the server."""
        flags = [
            f"-Xmx{self.heap_mib}m",
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={self._temporary}",
            f"-Drmq.logback.configurationFile={logback}",
            *self.jvm_flags,
        ]
        return [*java_command(self.module, self.main_class, flags), "-c", str(conf)]

    def start(self) -> Self:
        """Start the JVM and wait until it is ready; `start_seconds` says how long that took."""
        assert self.process is None, "the server already runs"
        home = self.directory / "home"
        home.mkdir(parents=True, exist_ok=True)
        self._temporary.mkdir(exist_ok=True)
        logback = self.directory / "logback.xml"
        logback.write_text(_LOGBACK.replace("LEVEL", self.log_level))
        conf = self.directory / f"{self.name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self.config().items()))
        command = self.command(home, logback, conf)
        began = time.monotonic()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={
                    **clean_environment(),
                    "ROCKETMQ_HOME": str(home),
                    "HOME": str(home),
                    **self.environment(),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_ready(began + START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        self.start_seconds = time.monotonic() - began
        return self

    def _wait_ready(self, deadline: float) -> None:
        assert self.process is not None
        while not self.ready():
            if self.process.poll() is not None:
                raise PeerError(
                    f"{self.name} ended with {self.process.returncode}:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise PeerError(
                    f"{self.name} was not ready after {START_TIMEOUT_S:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(0.05)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop cleanly (SIGTERM) and wait; a server that hangs is killed and reported."""
        if self.process is None:
            return
        _ = self.peak_memory_kib
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise PeerError(
                f"{self.name} did not stop in {timeout_s:.0f} s:\n{self.log_tail()}"
            ) from error
        self._ended()

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        if self.process is None:
            return
        _ = self.peak_memory_kib
        self.process.kill()
        self.process.wait()
        self._ended()

    def _ended(self) -> None:
        self.process = None
        shutil.rmtree(self._temporary, ignore_errors=True)

    def log_tail(self, size: int = 4000) -> str:
        """The end of the log."""
        return self.log_path.read_text(errors="replace")[-size:] if self.log_path.exists() else ""

    def _remove_directory(self) -> None:
        if self._owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._remove_directory()
            raise

    def leave(self) -> None:
        """End the server at the end of its context."""
        self.kill()

    def __exit__(self, *exc: object) -> None:
        try:
            self.leave()
        finally:
            self._remove_directory()


class JavaNamesrv(JavaServer):
    """The newest Java name server on a loopback port. `address` is its `host:port`."""

    main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
    name = "namesrv"

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: Path | None = None,
        heap_mib: int = 128,
        conf: Mapping[str, str] | None = None,
        jvm_flags: Sequence[str] = QUICK_JAVA,
        log_level: str = "ERROR",
    ) -> None:
        super().__init__(
            directory=directory, heap_mib=heap_mib, jvm_flags=jvm_flags, log_level=log_level
        )
        self.port = port or free_port()
        self.address = f"{HOST}:{self.port}"
        self.extra_conf = dict(conf or {})

    def config(self) -> dict[str, str]:
        """Properties of NamesrvConfig and NettyServerConfig."""
        return {
            "listenPort": str(self.port),
            "bindAddress": HOST,
            "kvConfigPath": str(self.directory / "kvConfig.json"),
            "configStorePath": str(self.directory / "namesrv.properties"),
            **self.extra_conf,
        }

    def ready(self) -> bool:
        """Whether it answers a cluster-info request."""
        with contextlib.suppress(OSError):
            return ask(self.address, _GET_BROKER_CLUSTER_INFO, tls=self.tls)[0] == 0
        return False


class JavaBroker(JavaServer):
    """The newest Java broker on a loopback port, ready once `namesrv` lists it.

    `conf` adds or overrides broker.conf keys. The defaults keep the files small (16 MiB commit
    log files, 50,000 index entries) and leave the 5.x timer files out; everything else is as
    the broker ships.
    """

    main_class = "org.apache.rocketmq.broker.BrokerStartup"
    name = "broker"

    def __init__(
        self,
        namesrv: str,
        *,
        broker_name: str = "broker-a",
        cluster_name: str = "DefaultCluster",
        port: int | None = None,
        directory: Path | None = None,
        store: Path | None = None,
        commit_log_file_bytes: int = 16 << 20,
        heap_mib: int = DEFAULT_HEAP_MIB,
        conf: Mapping[str, str] | None = None,
        jvm_flags: Sequence[str] = QUICK_JAVA,
        log_level: str = "ERROR",
    ) -> None:
        super().__init__(
            directory=directory, heap_mib=heap_mib, jvm_flags=jvm_flags, log_level=log_level
        )
        self.namesrv = namesrv
        self.broker_name = broker_name
        self.cluster_name = cluster_name
        self.port = port or free_broker_port()
        self.address = f"{HOST}:{self.port}"
        self.store = store or self.directory / "store"
        self.commit_log_file_bytes = commit_log_file_bytes
        self.extra_conf = dict(conf or {})
        self._answers_since: float | None = None

    def config(self) -> dict[str, str]:
        """Properties of BrokerConfig, NettyServerConfig and MessageStoreConfig."""
        return {
            "brokerClusterName": self.cluster_name,
            "brokerName": self.broker_name,
            "brokerId": "0",
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": str(self.port),
            "bindAddress": HOST,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "mappedFileSizeCommitLog": str(self.commit_log_file_bytes),
            "maxHashSlotNum": "10000",
            "maxIndexNum": "50000",
            "timerWheelEnable": "false",
            # The peers share a small machine: a broker that finds the disk fuller than this refuses to
            # write or deletes what is not old, which would say nothing about interoperation.
            "diskSpaceWarningLevelRatio": "98",
            "diskMaxUsedSpaceRatio": "95",
            "cleanFileForciblyEnable": "false",
            # Nor would one that refuses a request because it had to wait for 200 ms.
            "brokerFastFailureEnable": "false",
            "osPageCacheBusyTimeOutMills": "60000",
            # Until this time has passed for the first time, a thread of a 5.x broker asks for the time without
            # a pause (TransactionMetricsFlushService): by default ten seconds of a processor at each start.
            "transactionMetricFlushInterval": "500",
            # If no verdict of a transaction follows another within this time, a 5.5 broker looks for more without
            # a pause, with a whole processor, until it ends (TransactionalOpBatchService). It writes verdicts at
            # once when they have more bytes than the second setting, which all have.
            "transactionOpBatchInterval": "3600000",
            "transactionOpMsgMaxSize": "1",
            # Each flush copies the wheel of timers, 39 MB. Once a second, as by default, takes a third of a core.
            "timerFlushIntervalMs": "600000",
            # By default there are three threads of each kind, and each looks for work a hundred times a second.
            "timerGetMessageThreadNum": "1",
            "timerPutMessageThreadNum": "1",
            **self.extra_conf,
        }

    def ready(self) -> bool:
        """Whether the broker answers and the name server lists it.

        A 5.x broker loses a race with its own first name-server connection now and then and
        then registers 10 s later. So once it has answered for a second without being listed, a
        configuration update that changes nothing makes it register now.
        """
        try:
            ask(self.address, GET_BROKER_RUNTIME_INFO, tls=self.tls)
        except OSError:
            self._answers_since = None
            return False
        _, _, port = self.address.rpartition(":")
        reported = f"{self.config()['brokerIP1']}:{port}"
        if broker_registered(self.namesrv, self.broker_name, self.tls, address=reported):
            return True
        now = time.monotonic()
        self._answers_since = self._answers_since or now
        if now - self._answers_since > 1.0:
            self._answers_since = now
            with contextlib.suppress(OSError):
                ask(self.address, _UPDATE_BROKER_CONFIG, body=b"brokerPermission=6\n", tls=self.tls)
        return False


class Java53Namesrv(JavaNamesrv):
    """The name server of 5.3."""

    module = "server53"


class Java53Broker(JavaBroker):
    """The broker of 5.3, for what newer ones do otherwise."""

    module = "server53"


class JavaProxy(JavaServer):
    """The newest proxy in cluster mode, for the brokers of `namesrv`. `endpoints` is what gRPC clients are given.

    `library` is preloaded: it keeps the proxy, which has no bindAddress, on the loopback address. `conf` adds or
    overrides fields of its configuration.
    """

    main_class = "org.apache.rocketmq.proxy.ProxyStartup"
    name = "proxy"
    module = "proxy"

    def __init__(
        self, namesrv: str, library: str, *, conf: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(jvm_flags=(*QUICK_JAVA, "-Djava.net.preferIPv4Stack=true"), **options)
        self.namesrv = namesrv
        self.extra_conf = dict(conf or {})
        self._library = library
        self._port, self._remoting_port = free_port(), free_port()
        self.endpoints = f"{HOST}:{self._port}"

    def config(self) -> dict[str, str]:
        """The fields of `rmq-proxy.json`."""
        return {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": self.namesrv,
            "proxyMode": "CLUSTER",
            "grpcServerPort": str(self._port),
            "remotingListenPort": str(self._remoting_port),
            "localServeAddr": HOST,
            # Otherwise brokers can ask about a transaction only once the next period has begun.
            "transactionHeartbeatPeriodSecond": "1",
            **self.extra_conf,
        }

    def command(self, home: Path, logback: Path, conf: Path) -> list[str]:
        """The command line that starts the server, its configuration as JSON."""
        conf.write_text(json.dumps(self.config()))
        command = super().command(home, logback, conf)
        return [*command[:-2], "-pc", str(conf)]

    def environment(self) -> dict[str, str]:
        """The library that is preloaded."""
        return {"RMQ_PROXY_HOME": str(self.directory), "LD_PRELOAD": self._library}

    def ready(self) -> bool:
        """Whether it takes connections, which it does once all else runs."""
        with contextlib.suppress(OSError):
            socket.create_connection((HOST, self._port), timeout=20).close()
            return True
        return False


def peak_memory_kib(pid: int) -> int:
    """Peak resident memory (VmHWM) of a process in KiB, 0 when the process is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def clean_environment() -> dict[str, str]:
    """The environment without what would change a peer's behaviour behind the test's back."""
    dropped = ("NAMESRV_ADDR", "ROCKETMQ_HOME", "ROCKETMQ_SERIALIZE_TYPE", "JAVA_TOOL_OPTIONS")
    # pytest changes the environment between tests, which may run while a thread of another one is here.
    known = ((key, os.environ.get(key)) for key in list(os.environ))
    return {key: value for key, value in known if value is not None and key not in dropped}


if __name__ == "__main__":
    build_all(*sys.argv[1:])
