"""Keep archives of loaded classes, with which the JVMs of tests start in half the time.

Java calls this application class-data sharing: a JVM that ends in order writes the classes that it loaded,
parsed and linked, and the next one with the same class path, which may name jars only, maps the file.
`tests.interop.loaded_classes` makes the archives of Java's servers and clients, `tests.spark.class_archive`
that of Spark.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).resolve().parents[1] / ".cache" / "classes"
# While it names a directory, JVMs write archives there and use none.
_WRITTEN_TO: Final = "COMETMQ_CLASSES_WRITTEN_TO"
# A JVM leaves aside an archive that does not fit, and says so where tests read.
_SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


@functools.cache
def archive_file(label: str, *parts: str) -> Path | None:
    """Return where the archive belongs that this Java can use, None without Java.

    `label` has no other archive beside it; `parts` are the class path and what else makes the archive fit.
    Other parts have another name, and so has another Java, or a jar that was built again.
    """
    java = shutil.which("java")
    if java is None:
        return None
    digest = hashlib.sha256()
    for name in (str(Path(java).resolve()), *":".join(parts).split(":")):
        digest.update(name.encode() + b"\0")
        with contextlib.suppress(OSError):
            found = Path(name).stat()
            digest.update(b"%d %d\0" % (found.st_size, found.st_mtime_ns))
    return _FOLDER / f"{label}-{digest.hexdigest()[:16]}.jsa"


def is_there(file: Path) -> bool:
    """Say whether the archive is there as it was written. A JVM that maps a shorter file is ended by SIGBUS."""
    try:
        return file.stat().st_size == int(_size_file(file).read_text())
    except (OSError, ValueError):
        return False


def _size_file(file: Path) -> Path:
    return file.with_suffix(".size")


def archive_options(file: Path | None) -> Sequence[str]:
    """Return the options of a JVM that starts with the archive, none if there is no archive.

    Within `writing_archives`, these are the options of a JVM that writes it.
    """
    if file is None:
        return ()
    if written_to := os.environ.get(_WRITTEN_TO):
        return (f"-XX:ArchiveClassesAtExit={written_to}/{file.name}", *_SILENT)
    if not is_there(file):
        return ()
    return (f"-XX:SharedArchiveFile={file}", *_SILENT)


@contextlib.contextmanager
def writing_archives() -> Iterator[None]:
    """Keep the archives that JVMs of this block write, in the place of older ones of the same label.

    All of them must have ended in order before the block ends. One that is killed writes nothing, and none is
    kept if the block raises.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        os.environ[_WRITTEN_TO] = folder
        try:
            yield
        finally:
            del os.environ[_WRITTEN_TO]
        for written in Path(folder).glob("*.jsa"):
            label = written.name.rpartition("-")[0]
            for older in _FOLDER.glob(f"{label}-{'[0-9a-f]' * 16}.jsa"):
                older.unlink()
                _size_file(older).unlink(missing_ok=True)
            kept = _FOLDER / written.name
            _size_file(kept).write_text(str(written.stat().st_size))
            # The name appears with the whole file, since a JVM may start meanwhile.
            written.rename(kept)
