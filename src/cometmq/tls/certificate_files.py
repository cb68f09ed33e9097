"""Read the certificate of a server and its key, and say when the files have changed.

Brokers, name servers and the console use it. The functions block.
"""

from __future__ import annotations

import errno
import ssl
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger

log = get_logger(__name__)

# How often servers look at their files.
LOOK_PERIOD_S: Final = 2.0
# How long before its end a certificate is worth a warning, and how often it is repeated.
WARN_BEFORE_S: Final = 14 * 86_400
_WARN_EVERY_MS: Final = 86_400_000
# X509_V_ERR_CERT_HAS_EXPIRED
_EXPIRED: Final = 10

# Identifies the contents of a file: its time, size and number; None if it cannot be looked at.
FileMark = tuple[int, int, int] | None


class EndWarning:
    """Warns of the end of a certificate once a day, from `WARN_BEFORE_S` before it on."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._warned_ms = 0

    def look(self, expires_ms: int | None, now_ms: int) -> None:
        """Warn if it is time. `expires_ms` is None without a certificate, or if nobody knows."""
        left_s = WARN_BEFORE_S + 1.0 if expires_ms is None else (expires_ms - now_ms) / 1000
        if left_s > WARN_BEFORE_S:
            self._warned_ms = 0
            return
        if now_ms - self._warned_ms < _WARN_EVERY_MS:
            return
        self._warned_ms = now_ms
        log.warning(
            "the certificate expires soon" if left_s > 0 else "the certificate has expired",
            file=str(self._file),
            days_left=round(max(0.0, left_s) / 86_400, 1),
            remedy="put a new certificate and its key in place; no restart is needed",
        )


def marks_of(paths: Iterable[Path]) -> dict[Path, FileMark]:
    """Return marks of files, which differ once a file has changed."""
    marks: dict[Path, FileMark] = {}
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            marks[path] = None
        else:
            marks[path] = found.st_mtime_ns, found.st_size, found.st_ino
    return marks


def check_is_file(path: str | Path) -> None:
    """Raise OSError unless there is a regular file. Call it before OpenSSL opens the file.

    OpenSSL would wait at a pipe until somebody writes to it, and read a device without end.
    """
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise OSError(errno.EINVAL, f"{path} is {what}, not a file")


def serving_context(
    certificate: Path,
    key: Path | None,
    *,
    password: str | None = None,
    names: tuple[str, str] = ("certificate", "key"),
    unlocked_by: str | None = None,
) -> ssl.SSLContext:
    """Return the context for connections of others: TLS 1.2 or later, no client certificates.

    Without a `key` the file of the certificate has it. `names` are what an error calls the two
    files, and `unlocked_by` the setting for the password of an encrypted key; without one such keys
    cannot be used. Raises ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A peer that has shaken hands once could have this server sign without end. It is the default
    # of OpenSSL 3 only.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION

    def given_password() -> str:
        # Without it OpenSSL would ask on the terminal.
        if not password:
            remedy = f"set {unlocked_by}" if unlocked_by else "give one that is not"
            raise ConfigError(f"the private key {key or certificate} is encrypted: {remedy}")
        return password

    try:
        for path in (certificate, key or certificate):
            check_is_file(path)
        context.load_cert_chain(certificate, key, given_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{names[0]}={certificate} with {names[1]}={key or certificate} cannot be used: "
            f"{tls_reason(error, unlocked_by)}"
        ) from error
    return context


def tls_reason(error: OSError | ValueError, unlocked_by: str | None = None) -> str:
    """Return why files cannot be used, in words."""
    if isinstance(error, ssl.SSLError):
        # Of a file that has none OpenSSL says nothing but this.
        reason = (error.reason or "it has no certificate or key").replace("_", " ").lower()
        hint = ""
        if "mismatch" in reason:
            hint = " (the key is not that of the certificate)"
        elif unlocked_by and ("bad decrypt" in reason or "password" in reason):
            hint = f" (is {unlocked_by} right?)"
        return f"{reason}{hint}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def end_of(certificate: Path, serving: ssl.SSLContext) -> int | None:
    """Return when a server's certificate expires, in ms since the epoch; 0 if it has, None if
    that cannot be found out.

    Python's ssl shows the contents of a certificate only to a peer that trusts it. So this asks as
    such a peer would, in memory.
    """
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        check_is_file(certificate)
        asking.load_verify_locations(certificate)
        server = serving.wrap_bio(to_server, to_client, server_side=True)
        client = asking.wrap_bio(to_client, to_server)
        # In TLS 1.3 the client knows the certificate after the server's first answer.
        for side in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        served = client.getpeercert()
    except ssl.SSLCertVerificationError as error:
        return 0 if error.verify_code == _EXPIRED else None
    except (OSError, ValueError):  # only TLS 1.2 is allowed, say
        return None
    return int(ssl.cert_time_to_seconds(str(served["notAfter"])) * 1000) if served else None
