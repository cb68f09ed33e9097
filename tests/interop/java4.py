"""Java's name server and broker of 4.9, on the loopback address only."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.interop.peers import (
    GET_BROKER_RUNTIME_INFO,
    JAVA_PROJECT,
    QUICK_JAVA,
    JavaBroker,
    JavaNamesrv,
    ask,
)

_SOURCE = JAVA_PROJECT / "src" / "loopback" / "loopback.c"
# The preloaded library knows IPv4 only; Java 17 wants to be told what 4.9 takes from the JDK.
_FLAGS = (
    *QUICK_JAVA,
    "-Djava.net.preferIPv4Stack=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %t %c - %m%n</pattern></encoder>
  </appender>
  <root level="ERROR"><appender-ref ref="out"/></root>
</configuration>
"""


def loopback_library(directory: Path) -> str:
    """Build the library that keeps a server on the loopback address, in the server's directory."""
    library = directory / "loopback.so"
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, timeout=120)
    return str(library)


def _prepare(directory: Path) -> None:
    """Write the log configurations, without which a server of 4.9 does not start."""
    conf = directory / "home" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for server in ("namesrv", "broker"):
        (conf / f"logback_{server}.xml").write_text(_LOGBACK)


class Java4Namesrv(JavaNamesrv):
    module = "server4"

    def __init__(self, **options: Any) -> None:
        super().__init__(jvm_flags=_FLAGS, **options)
        _prepare(self.directory)

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": loopback_library(self.directory)}


class Java4Broker(JavaBroker):
    module = "server4"

    def __init__(self, namesrv: str, **options: Any) -> None:
        super().__init__(namesrv, jvm_flags=_FLAGS, **options)
        _prepare(self.directory)

    def ready(self) -> bool:
        """Whether the broker shows its figures too.

        It fails to until it has sampled them once, a second after its start (StoreStatsService asks
        an empty list for its last entry).
        """
        return super().ready() and ask(self.address, GET_BROKER_RUNTIME_INFO)[0] == 0

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": loopback_library(self.directory)}
