"""Keep archives of loaded classes, with which the JVMs of tests start in half the time.

Java calls this application class-data sharing. A JVM that ends in order writes the classes that it loaded, parsed
and linked into a file. The next JVM with the same class path maps the file. The class path may name jars only.
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
# A JVM ignores an archive that does not fit, and would report that in the output that tests read.
_SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


@functools.cache
def archive_file(label: str, *parts: str) -> Path | None:
    """Return the file for the archive that this Java can use. Return None without Java.

    Each `label` has one archive. `parts` are the class path and everything else that the archive has to fit.
    Other parts, another Java, or a jar that was built again give another name.
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
    """Return whether the archive is there in its full size. SIGBUS ends a JVM that maps a shorter file."""
    try:
        return file.stat().st_size == int(_size_file(file).read_text())
    except (OSError, ValueError):
        return False


def _size_file(file: Path) -> Path:
    return file.with_suffix(".size")


def archive_options(file: Path | None) -> Sequence[str]:
    """Return the options of a JVM that starts with the archive. Return none if there is no archive.

    Within `writing_archives`, return the options of a JVM that writes it.
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
    """Keep the archives that JVMs of this block write, in place of older ones of the same label.

    All JVMs must have ended in order before the block ends. A JVM that is killed writes no archive. If the block
    raises, no archive is kept.
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
            # A JVM may start meanwhile, so the file gets its name only when it is complete.
            written.rename(kept)
