"""Keep the console's certificate, and read it again when its files change, as brokers do theirs.

New connections get the new certificate, open ones keep theirs. A pair that is damaged, or only half
written, is named in the log once, and the last good one stays in force.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import TaskOwner
from cometmq.tls.certificate_files import (
    LOOK_PERIOD_S,
    EndWarning,
    FileMark,
    end_of,
    marks_of,
    serving_context,
)

log = get_logger(__name__)

LOOK_S: Final = LOOK_PERIOD_S


class _Read(NamedTuple):
    """Holds the certificate of one version of the files; `expires_ms` is None if that cannot be
    found out.
    """

    marks: dict[Path, FileMark]
    context: ssl.SSLContext
    expires_ms: int | None


class Certificate:
    """Is the certificate that the console serves. For the loop's thread only; `load` comes first."""

    def __init__(self, certificate: Path, key: Path, clock: Clock) -> None:
        self._certificate = certificate
        self._key = key
        self._clock = clock
        self._read: _Read | None = None
        # The files as they were when they were last looked at, good or not.
        self._marks: dict[Path, FileMark] = {}
        self._fault = ""
        self._warning = EndWarning(certificate)

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of the next connection."""
        assert self._read is not None, "it is loaded first"
        return self._read.context

    async def load(self) -> None:
        """Read the files. Raises ConfigError that says what is wrong with them."""
        self._read = await asyncio.to_thread(self._read_files)
        self._marks = self._read.marks
        self._warn_of_end()

    def start(self, tasks: TaskOwner) -> None:
        """Begin to look whether the files have changed."""
        tasks.every(LOOK_S, self._look, "look-at-certificate")

    async def _look(self) -> None:
        marks = await asyncio.to_thread(marks_of, self._marks)
        # A fault may go away without a change of the files: rights, or too few descriptors.
        if marks != self._marks or self._fault:
            # Noted before the files are read, so that a change meanwhile is read again.
            self._marks = marks
            try:
                await self.load()
            except ConfigError as error:
                if str(error) != self._fault:
                    log.error(  # noqa: TRY400 - the reason says it all
                        "the new certificate cannot be used; the last one stays", reason=str(error)
                    )
                self._fault = str(error)
            else:
                self._fault = ""
                log.info("a new certificate is in force", file=str(self._certificate))
        self._warn_of_end()

    def _read_files(self) -> _Read:
        marks = marks_of((self._certificate, self._key))
        names = ("--certificate", "--certificate-key")
        context = serving_context(self._certificate, self._key, names=names)
        return _Read(marks, context, end_of(self._certificate, context))

    def _warn_of_end(self) -> None:
        expires_ms = None if self._read is None else self._read.expires_ms
        self._warning.look(expires_ms, self._clock.now_ms())
