"""Reach object stores and HDFS through Hadoop's file systems, in the driver's JVM.

So they need only what Spark itself needs to write there: the jars of the file system,
and settings such as `spark.hadoop.fs.s3a.endpoint`.

How a file appears as a whole:

    the file system                   write                        create
    puts objects, on a condition      put                          put if nothing is there
    (S3A of Hadoop 3.4.2 and later)
    puts objects (S3A before it, GCS) put                          put if nothing was there
    renames (HDFS, ABFS, local)       rename from a hidden name    rename, which fails if it is there
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from cometmq.errors import ConfigError
from cometmq.pipelines.locations import Location, RemoteFiles, is_uri, located
from cometmq.pipelines.s3_access import S3Access, access_of
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS

# Hadoop's `Options.CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE`.
_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
# Their files appear when they are closed, and a rename is a copy.
_PUT_OBJECTS: Final = frozenset(("s3a", "s3", "s3n", "gs", "oss", "cosn", "obs"))
_PACKAGES: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
}
# How often a file is read that is replaced meanwhile, as a lease is every few seconds.
_READS: Final = 5
# S3A uses this name both for a file that a condition did not expect and for one that changed while it
# was read.
_EXISTS: Final = ("FileAlreadyExistsException", "RemoteFileChangedException")


def location(spark: Any, path: str | os.PathLike[str] | Location, key: str = "path") -> Location:
    """Return where a path is: on this machine, or in a file system that the session reaches.

    Raise ConfigError, which names the setting `key`, if Spark has no such file system or does not
    get there.
    """
    if isinstance(path, str) and is_uri(path):
        return Location(HadoopFiles(spark, path, key), path)
    return located(path)


class HadoopFiles(RemoteFiles):
    """The file system of a URI, with the settings of a session."""

    def __init__(self, spark: Any, uri: str, key: str = "path") -> None:
        """Raise ConfigError if the session has no such file system."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkAttributeError

        scheme = urlsplit(uri).scheme.lower()
        try:
            self._gateway = spark.sparkContext._gateway  # noqa: SLF001 - Spark has no other door to Hadoop's files
            settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above
        except PySparkAttributeError as error:
            raise ConfigError(
                f"{key} is {uri!r}, and a session of Spark Connect has no driver here to reach it: "
                "run the pipeline by spark-submit"
            ) from error
        self._jvm = self._gateway.jvm
        try:
            self._fs = self._path(uri).getFileSystem(settings)
            self._puts = scheme in _PUT_OBJECTS
            self._conditional = self._fs.hasPathCapability(self._path(uri), _CONDITIONAL)
            if not self._puts and not self._conditional:
                contexts = self._jvm.org.apache.hadoop.fs.FileContext
                self._context = contexts.getFileContext(self._fs.getUri(), settings)
        except Py4JJavaError as error:
            said = f"{key} is {uri!r}, and this Spark does not get there: {_reason(error)}"
            if package := _PACKAGES.get(scheme):
                version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
                shown = f"{package}:{version}" if "hadoop:" in package else package
                said += f". It needs {shown} (spark.jars.packages) and its spark.hadoop.fs settings"
            raise ConfigError(said) from error

    def read(self, path: str, /) -> bytes:
        for _ in range(_READS - 1):
            # S3A fails a read if the file is replaced between its requests.
            with suppress(FileExistsError):
                return self._read(path)
        return self._read(path)

    def write(self, path: str, data: bytes, /) -> None:
        with _os_errors(path):
            if self._puts or self._conditional:
                self._put(self._fs.create(self._path(path), True), data)
            else:
                self._rename_into_place(path, data, "OVERWRITE")

    def create(self, path: str, data: bytes, /) -> None:
        with _os_errors(path):
            if self._conditional:
                builder = self._fs.createFile(self._path(path)).recursive()
                self._put(builder.must(_CONDITIONAL, True).build(), data)
            elif self._puts:
                self._put(self._fs.create(self._path(path), False), data)
            else:
                self._rename_into_place(path, data, "NONE")

    def move(self, from_: str, to: str, /) -> None:
        target = self._path(to)
        with _os_errors(from_):
            self._fs.mkdirs(target.getParent())
            if not self._fs.rename(self._path(from_), target):
                if not self._fs.exists(self._path(from_)):
                    raise FileNotFoundError(f"{from_} is not there to be moved to {to}")
                raise OSError(f"{from_} cannot be moved to {to}")

    def remove(self, path: str, /) -> None:
        with _os_errors(path):
            self._fs.delete(self._path(path), True)

    def sizes(self, directory: str, /) -> dict[str, int]:
        base = self._path(directory)
        found: dict[str, int] = {}
        try:
            with _os_errors(directory):
                prefix = self._fs.makeQualified(base).toString().rstrip("/") + "/"
                entries = self._fs.listFiles(base, True)
                while entries.hasNext():
                    entry = entries.next()
                    found[entry.getPath().toString().removeprefix(prefix)] = entry.getLen()
        except FileNotFoundError:
            return {}
        return found

    def exists(self, path: str, /) -> bool:
        with _os_errors(path):
            return bool(self._fs.exists(self._path(path)))

    def s3_access(self, path: str, /) -> S3Access | None:
        if self._fs.getClass().getSimpleName() != "S3AFileSystem":
            return None
        with _os_errors(path):
            return access_of(self._fs, urlsplit(path).netloc, self._gateway)

    # Inside

    def _read(self, path: str) -> bytes:
        with _os_errors(path):
            stream = self._fs.open(self._path(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def _path(self, uri: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(uri)

    def _put(self, stream: Any, data: bytes) -> None:
        """Fill a file and close it. An object store shows it from then on.

        If it cannot be filled, it is not closed either, because that would show a part.
        """
        stream.write(data)
        stream.close()

    def _rename_into_place(self, path: str, data: bytes, how: str) -> None:
        # A context takes no path without an authority, such as hdfs:///archive.
        target = self._fs.makeQualified(self._path(path))
        token = SYSTEM_RANDOMNESS.token_hex(8)
        hidden = self._jvm.org.apache.hadoop.fs.Path(
            target.getParent(), f".{target.getName()}.{token}"
        )
        options = self._jvm.org.apache.hadoop.fs.Options.Rename
        chosen = self._gateway.new_array(options, 1)
        chosen[0] = options.valueOf(how)
        try:
            stream = self._fs.create(hidden, True)
            stream.write(data)
            stream.hsync()
            stream.close()
            self._context.rename(hidden, target, chosen)
        except BaseException:
            with suppress(Exception):
                self._fs.delete(hidden, False)
            raise


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Raise Java's exceptions as Python's: FileNotFoundError, FileExistsError, else OSError."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        kind = error.java_exception.getClass().getSimpleName()
        said = f"{path}: {_reason(error)}"
        if kind == "FileNotFoundException":
            raise FileNotFoundError(said) from error
        if kind in _EXISTS:
            raise FileExistsError(said) from error
        raise OSError(said) from error


def _reason(error: Exception) -> str:
    """Return the first line of Java's error, without its trace."""
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.toString()).splitlines()[0][:500]
