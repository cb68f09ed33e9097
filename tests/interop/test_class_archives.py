"""A JVM of the tests starts with the archive of its classes, and without one that does not fit."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.class_archives import archive_file, archive_options, writing_archives
from tests.interop.conftest import need
from tests.interop.peers import QUICK_JAVA, java_classpath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

LABEL = "tested"
# It ends in order when its standard input ends.
MAIN = "cometmq.interop.Admin"


class Program(NamedTuple):
    """A program with a class path, and its archive."""

    path: str
    archive: Path

    def archived_classes(self, directory: Path) -> int:
        """Run the program, which must print nothing; return how many classes came from its own archive."""
        log = directory / "classes"
        options = [*QUICK_JAVA, *archive_options(self.archive), f"-Xlog:class+load:file={log}"]
        command = ["java", *options, "-cp", self.path, MAIN]
        done = subprocess.run(command, input=b"", capture_output=True, check=True)
        assert done.stdout + done.stderr == b""
        lines = log.read_text().splitlines()
        return sum("shared objects file (top)" in line for line in lines)


@pytest.fixture
def program() -> Iterator[Program]:
    need("java", "mvn")
    path = java_classpath("tools5")
    archive = archive_file(LABEL, path)
    assert archive is not None
    archive.unlink(missing_ok=True)
    yield Program(path, archive)
    for file in (archive, archive.with_suffix(".size")):
        file.unlink(missing_ok=True)


def test_a_program_starts_with_the_archive_that_it_wrote(program: Program, tmp_path: Path) -> None:
    assert program.archived_classes(tmp_path) == 0
    with writing_archives():
        program.archived_classes(tmp_path)
        assert not program.archive.exists()
    assert program.archived_classes(tmp_path) > 100


def test_what_does_not_fit_is_left_aside_in_silence(program: Program, tmp_path: Path) -> None:
    with writing_archives():
        program.archived_classes(tmp_path)
    jars = program.path.split(":")
    other = program._replace(path=":".join([jars[0], *reversed(jars[1:])]))
    assert other.archived_classes(tmp_path) == 0
    whole = program.archive.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:100], b"", b"x" * len(whole)):
        program.archive.unlink()
        program.archive.write_bytes(damaged)
        assert program.archived_classes(tmp_path) == 0


def test_a_block_that_fails_keeps_no_archive(program: Program, tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with writing_archives():
            program.archived_classes(tmp_path)
            raise LookupError

    with pytest.raises(LookupError):
        write_and_fail()
    assert not program.archive.exists()
    assert program.archived_classes(tmp_path) == 0


def test_an_archive_takes_the_place_of_an_older_one(program: Program, tmp_path: Path) -> None:
    older = program.archive.with_name(f"{LABEL}-{'0' * 16}.jsa")
    beside = program.archive.with_name(f"{LABEL}-other-{'0' * 16}.jsa")
    for file in (older, beside):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    with writing_archives():
        program.archived_classes(tmp_path)
    assert program.archive.exists()
    assert not older.exists()
    assert beside.exists()
    beside.unlink()


def test_another_class_path_and_a_jar_that_changed_have_another_archive(tmp_path: Path) -> None:
    need("java")
    jar = tmp_path / "a.jar"
    paths = [archive_file(LABEL, path) for path in (str(jar), f"{jar}:{jar}")]
    jar.write_bytes(b"changed")
    archive_file.cache_clear()
    paths.append(archive_file(LABEL, str(jar)))
    assert len(set(paths)) == 3
    assert None not in paths
