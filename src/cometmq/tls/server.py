"""Keep the certificates of a server, and read them again when their files change.

New connections get the new certificates, open ones keep theirs. A pair that is damaged, or only half
written, is named in the log once, and the last good one stays in force. Java: TlsHelper,
FileWatchService.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.metrics import catalogue as metric_catalogue
from cometmq.metrics.exposition import Exposition
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import TaskOwner
from cometmq.tls.certificate_files import (
    LOOK_PERIOD_S,
    EndWarning,
    FileMark,
    check_is_file,
    end_of,
    marks_of,
    serving_context,
    tls_reason,
)
from cometmq.tls.config import TlsConfig
from cometmq.tls.contexts import Tls
from cometmq.tls.handshakes import Handshakes

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Holds what was read at one time."""

    serving: ssl.SSLContext | None
    own: ssl.SSLContext | None
    # ms since the epoch; None for a server without a certificate.
    expires_ms: int | None


class ServerTls:
    """The certificates of one server, for all its ports and for its own connections.

    `load` first, then `start`. `context` is for the connections of others, `own` for this server's. For the loop's thread only.
    """

    def __init__(
        self, config: TlsConfig, clock: Clock, application_protocols: tuple[str, ...] = ()
    ) -> None:
        self.config = config
        self.mode = config.mode
        # Which of them a client speaks is agreed in its handshake (ALPN); none is said without them.
        self._application_protocols = application_protocols
        self.handshakes = Handshakes(
            at_once=config.max_tls_handshakes,
            per_second=config.max_tls_handshakes_per_second,
            timeout_s=config.tls_handshake_timeout_seconds,
        )
        # Why the files that lie there now are not in force, "" if they are.
        self.fault = ""
        self._clock = clock
        self._loaded: _Loaded | None = None
        self._marks: dict[Path, FileMark] = {}
        self._warning = EndWarning(config.tls_server_cert_path)

    @property
    def context(self) -> ssl.SSLContext:
        """The context that serves the next connection."""
        assert self._loaded is not None, "the certificates are not loaded"
        assert self._loaded.serving is not None, "this server has no certificate"
        return self._loaded.serving

    @property
    def own(self) -> Callable[[], ssl.SSLContext] | None:
        """The function that gives this server's own connections their context; None if they are
        plain.
        """
        return self._own_context if self.config.encrypts_own else None

    def _own_context(self) -> ssl.SSLContext:
        """Return what this server's next connection to another server uses."""
        assert self._loaded is not None, "the certificates are not loaded"
        assert self._loaded.own is not None, "this server's own connections are not encrypted"
        return self._loaded.own

    @property
    def expires_in_s(self) -> float | None:
        """The seconds until the certificate expires, 0 after that; None without a certificate."""
        if self._loaded is None or self._loaded.expires_ms is None:
            return None
        return max(0.0, (self._loaded.expires_ms - self._clock.now_ms()) / 1000)

    async def load(self) -> None:
        """Read the files. Raises ConfigError that names a file that cannot be used."""
        self._marks, self._loaded = await asyncio.get_running_loop().run_in_executor(
            None, self._read
        )
        self._warn_of_end()

    def start(self, tasks: TaskOwner) -> None:
        """Begin to look whether the files have changed."""
        tasks.every(LOOK_PERIOD_S, self.look, "look-at-certificates")

    def collect(self, out: Exposition) -> Iterator[None]:
        """Write the metrics of TLS."""
        if (left_s := self.expires_in_s) is not None:
            out.one(metric_catalogue.TLS_CERTIFICATE_LEFT, left_s)
            out.one(metric_catalogue.TLS_RELOAD_FAILED, 1 if self.fault else 0)
            out.one(metric_catalogue.TLS_HANDSHAKES_WAITING, self.handshakes.open_count)
            out.begin(metric_catalogue.TLS_HANDSHAKES)
            for outcome, count in self.handshakes.outcomes.items():
                out.sample(count, outcome)
        yield

    # -- inside --

    async def look(self) -> None:
        """Read the certificates again if their files have changed; keep the old ones if they fail."""
        loop = asyncio.get_running_loop()
        marks = await loop.run_in_executor(None, marks_of, self._marks)
        # The reason for a fault may go without a change of the files: rights, or too few descriptors.
        if marks != self._marks or self.fault:
            # Noted before they are read: what changes meanwhile is read again.
            self._marks = marks
            try:
                self._marks, self._loaded = await loop.run_in_executor(None, self._read)
            except ConfigError as error:
                self._keep_old(str(error))
            else:
                self.fault = ""
                log.info("new certificates are in force", expires_in_s=self.expires_in_s)
        self._warn_of_end()

    def _keep_old(self, reason: str) -> None:
        if reason != self.fault:
            log.error("the new certificates cannot be used; the last ones stay", reason=reason)
        self.fault = reason

    def _warn_of_end(self) -> None:
        expires_ms = None if self._loaded is None else self._loaded.expires_ms
        self._warning.look(expires_ms, self._clock.now_ms())

    def _read(self) -> tuple[dict[Path, FileMark], _Loaded]:
        """Read all files. Raises ConfigError. For any thread."""
        config = self.config
        paths: Iterable[Path | None] = (
            config.tls_server_cert_path,
            config.tls_server_key_path,
            config.tls_server_trust_cert_path,
            config.tls_client_cert_path,
            config.tls_client_key_path,
            config.tls_client_trust_cert_path,
        )
        marks = marks_of(path for path in paths if path is not None)
        serving, expires_ms = None, None
        if self.mode != "disabled":
            serving = _serving_context(config)
            expires_ms = end_of(_certificate(config), serving)
            if self._application_protocols:
                serving.set_alpn_protocols(self._application_protocols)
        own = _own_context(config) if config.encrypts_own else None
        return marks, _Loaded(serving, own, expires_ms)


def server_tls(
    config: TlsConfig, clock: Clock, application_protocols: tuple[str, ...] = ()
) -> ServerTls | None:
    """Return what TLS needs, None for a server that neither serves nor uses it."""
    if config.mode == "disabled" and not config.encrypts_own:
        return None
    return ServerTls(config, clock, application_protocols)


def certificate_left_s(config: TlsConfig, clock: Clock) -> float | None:
    """Return the seconds until the certificate in the files expires, 0 after that, None if none is
    served or its end is unknown. Raises ConfigError if the files cannot be used. Blocks.
    """
    if config.mode == "disabled":
        return None
    expires_ms = end_of(_certificate(config), _serving_context(config))
    return None if expires_ms is None else max(0.0, (expires_ms - clock.now_ms()) / 1000)


def own_settings(config: TlsConfig) -> Tls:
    """Return the settings for a server's own connections. Raises ConfigError.

    Unlike in Java, certificates are checked unless `tls.client.authServer=false` is given. The
    authorities that sign clients' certificates sign those of the other servers, too, unless
    `tls.client.trustCertPath` says otherwise.
    """
    verify = config.tls_client_auth_server is not False
    trusted = config.tls_client_trust_cert_path or config.tls_server_trust_cert_path
    own = config.tls_client_cert_path
    return Tls(
        ca_file=str(trusted) if verify and trusted is not None else None,
        cert_file=None if own is None else str(own),
        key_file=_text(config.tls_client_key_path) if own is not None else None,
        key_password=config.tls_client_key_password if own is not None else None,
        verify=verify,
        check_hostname=config.tls_check_hostname,
    )


def _own_context(config: TlsConfig) -> ssl.SSLContext:
    try:
        return own_settings(config).context()
    except ConfigError as error:
        raise ConfigError(f"tls.client.trustCertPath or tls.client.certPath: {error}") from error


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _certificate(config: TlsConfig) -> Path:
    assert config.tls_server_cert_path is not None, "TlsConfig checks that"
    return config.tls_server_cert_path


def _serving_context(config: TlsConfig) -> ssl.SSLContext:
    """Return the context for the connections of others. Raises ConfigError."""
    context = serving_context(
        _certificate(config),
        config.tls_server_key_path,
        password=config.tls_server_key_password,
        names=("tls.server.certPath", "tls.server.keyPath"),
        unlocked_by="tls.server.keyPassword",
    )
    asked = config.tls_server_need_client_auth
    if asked == "none":
        return context
    context.verify_mode = ssl.CERT_REQUIRED if asked == "require" else ssl.CERT_OPTIONAL
    trusted = config.tls_server_trust_cert_path
    if trusted is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return context
    try:
        check_is_file(trusted)
        context.load_verify_locations(trusted)
    except OSError as error:
        raise ConfigError(
            f"tls.server.trustCertPath={trusted} cannot be used: {tls_reason(error)}"
        ) from error
    return context
