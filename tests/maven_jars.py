"""Run Maven, one at a time, and get jars from its repository into a folder."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# A download that stalls is given up after a minute, by the transports of Maven 3.8 and 3.9.
MAVEN = (
    *("mvn", "-B", "-q", "-ntp"),
    *("-Dmaven.wagon.http.readTimeout=60000", "-Daether.connector.requestTimeout=60000"),
)


_LOCK = Path(__file__).resolve().parents[1] / ".cache" / "maven.lock"


class MavenError(RuntimeError):
    """There is no Maven, or it failed; the text holds the last that it said."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """Names a jar, which comes with all that it depends on but what `without` names (`group:artifact`,
    either of them may be `*`). `classifier` tells jars of one version apart.
    """

    group: str
    name: str
    version: str
    without: tuple[str, ...] = ()
    classifier: str = ""

    def xml(self) -> str:
        left_out = "".join(
            "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>".format(
                *one.split(":")
            )
            for one in self.without
        )
        kind = f"<classifier>{self.classifier}</classifier>" if self.classifier else ""
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version>{kind}<exclusions>{left_out}</exclusions></dependency>\n"
        )


@contextlib.contextmanager
def one_maven() -> Iterator[None]:
    """Wait until no other process of this checkout runs Maven.

    Two that download the same file into a new local repository disturb each other.
    """
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def get_jars(artifacts: Sequence[Artifact], folder: Path) -> list[str]:
    """Return the jars of a folder, which Maven fills unless it is there. Raise MavenError."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            _copy(artifacts, Path(work))
            # Complete, or not there.
            Path(work, "jars").rename(folder)
    return sorted(map(str, folder.glob("*.jar")))


def copy_artifact(name: str, folder: Path) -> None:
    """Copy a file of the repository, `group:artifact:version[:type[:classifier]]`, into a folder. Raise MavenError."""
    _run(["dependency:copy", f"-Dartifact={name}", f"-DoutputDirectory={folder}"], folder)


def _copy(artifacts: Sequence[Artifact], work: Path) -> None:
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        "<modelVersion>4.0.0</modelVersion><groupId>cometmq</groupId>"
        "<artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{''.join(one.xml() for one in artifacts)}</dependencies>\n</project>\n"
    )
    _run(
        [
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={work}/jars",
        ],
        work,
    )


def _run(words: Sequence[str], directory: Path) -> None:
    if shutil.which("mvn") is None:
        raise MavenError("no Apache Maven (`mvn`)")
    with one_maven():
        done = subprocess.run(
            [*MAVEN, *words],
            cwd=directory, check=False, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    if done.returncode:
        raise MavenError(done.stdout[-4000:])
