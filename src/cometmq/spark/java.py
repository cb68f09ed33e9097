"""Find out whether there is a Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError

# Spark 4 needs at least this version.
OLDEST: Final = 17
_TIMEOUT_S: Final = 30
_REMEDY: Final = (
    f"install Java {OLDEST} or 21 (Debian and Ubuntu: apt install openjdk-{OLDEST}-jre-headless, "
    f"macOS: brew install openjdk@{OLDEST}) and have JAVA_HOME name it"
)
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')


def java_version() -> int | None:
    """Return the major version of the Java that Spark would start (8 for 1.8), or None if there is
    none.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        ended = subprocess.run(  # noqa: S603 - the Java that this machine is set up with
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(ended.stderr + ended.stdout)
    if found is None:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def require_java() -> None:
    """Raise ConfigError, in one sentence, unless Spark can run here."""
    version = java_version()
    if version is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home} has none" if home else "none is here"
        raise ConfigError(f"Spark needs Java {OLDEST} or newer and {where}: {_REMEDY}")
    if version < OLDEST:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer, not Java {version}: {_REMEDY}")
