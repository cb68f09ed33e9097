"""Define the TLS settings of servers under RocketMQ's keys (Java: TlsSystemConfig, TlsHelper).

Java reads the keys as system properties and from a file of their own. Here they may stand in the
configuration file of the server, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError
from cometmq.runtime.configuration.config import keys_of, load_properties

# Where Java looks for its TLS keys.
DEFAULT_TLS_FILE: Final = Path("/etc/rocketmq/tls.properties")
FILE_KEY: Final = "tls.config.file"

MODES: Final = ("disabled", "permissive", "enforcing")
_CLIENT_CERTIFICATES: Final = ("none", "optional", "require")


def _key(name: str) -> dict[str, str]:
    return {"key": name}


@dataclass(kw_only=True)
class TlsConfig:
    """Holds the TLS settings of a broker or a name server.

    Raises ConfigError for settings that contradict each other, or that ask for less than they say.
    Whether the files can be used is found out when they are read.
    """

    # "" is permissive where there is a certificate, and disabled where there is none.
    tls_server_mode: str = field(default="", metadata=_key("tls.server.mode"))
    tls_config_file: Path | None = field(default=None, metadata=_key(FILE_KEY))
    tls_test_mode_enable: bool = field(default=False, metadata=_key("tls.test.mode.enable"))
    tls_server_cert_path: Path | None = field(default=None, metadata=_key("tls.server.certPath"))
    tls_server_key_path: Path | None = field(default=None, metadata=_key("tls.server.keyPath"))
    tls_server_key_password: str | None = field(
        default=None, repr=False, metadata={"key": "tls.server.keyPassword", "secret": True}
    )
    tls_server_trust_cert_path: Path | None = field(
        default=None, metadata=_key("tls.server.trustCertPath")
    )
    tls_server_need_client_auth: str = field(
        default="none", metadata=_key("tls.server.need.client.auth")
    )
    tls_server_auth_client: bool = field(default=False, metadata=_key("tls.server.authClient"))
    # Whether this server's own connections to name servers and other brokers are encrypted.
    tls_enable: bool = field(default=False, metadata=_key("tls.enable"))
    use_tls: bool = field(default=False, metadata=_key("useTLS"))
    tls_client_cert_path: Path | None = field(default=None, metadata=_key("tls.client.certPath"))
    tls_client_key_path: Path | None = field(default=None, metadata=_key("tls.client.keyPath"))
    tls_client_key_password: str | None = field(
        default=None, repr=False, metadata={"key": "tls.client.keyPassword", "secret": True}
    )
    tls_client_trust_cert_path: Path | None = field(
        default=None, metadata=_key("tls.client.trustCertPath")
    )
    # None is true, where Java has false.
    tls_client_auth_server: bool | None = field(
        default=None, metadata=_key("tls.client.authServer")
    )
    # CometMQ's own: whether a server's certificate has to name the address that is connected to.
    tls_check_hostname: bool = True
    # CometMQ's own: how long a handshake may take, how many may be under way, and how many may begin
    # each second; the others wait for their turn.
    tls_handshake_timeout_seconds: int = field(default=10, metadata={"min": 1, "max": 600})
    max_tls_handshakes: int = field(default=32, metadata={"min": 1})
    max_tls_handshakes_per_second: int = field(default=200, metadata={"min": 1})

    @property
    def mode(self) -> str:
        """The mode that is in force; without a certificate nothing can be served by TLS."""
        if self.tls_server_mode == "enforcing":
            return "enforcing"
        if self.tls_server_cert_path is None or self.tls_server_mode == "disabled":
            return "disabled"
        return "permissive"

    @property
    def encrypts_own(self) -> bool:
        """Whether this server's own connections are encrypted."""
        return self.tls_enable or self.use_tls

    def __post_init__(self) -> None:
        self.tls_server_mode = _one_of("tls.server.mode", self.tls_server_mode, ("", *MODES))
        self.tls_server_need_client_auth = _one_of(
            "tls.server.need.client.auth",
            self.tls_server_need_client_auth or "none",
            _CLIENT_CERTIFICATES,
        )
        self._check_certificate()
        if self.mode != "disabled":
            self._check_clients()
        if self.tls_client_cert_path is None and self.tls_client_key_path is not None:
            raise ConfigError(
                f"tls.client.keyPath={self.tls_client_key_path} has no certificate: set "
                "tls.client.certPath, too"
            )

    def _check_certificate(self) -> None:
        if self.mode == "enforcing" and self.tls_server_cert_path is None:
            where = self.tls_config_file or "the server's file"
            hint = "`cometmq dev --tls` makes certificates for first steps"
            if self.tls_test_mode_enable:
                hint = f"tls.test.mode.enable makes none here, as nobody could trust it; {hint}"
            raise ConfigError(
                "tls.server.mode=enforcing needs a certificate: set tls.server.certPath and "
                f"tls.server.keyPath in {where} ({hint})"
            )
        if self.tls_server_cert_path is None and self.tls_server_key_path is not None:
            raise ConfigError(
                f"tls.server.keyPath={self.tls_server_key_path} has no certificate: set "
                "tls.server.certPath, too"
            )

    def _check_clients(self) -> None:
        asked = self.tls_server_need_client_auth
        if asked == "none" and self.tls_server_auth_client:
            raise ConfigError(
                "tls.server.authClient=true checks nobody, because clients are not asked for "
                "certificates: set tls.server.need.client.auth=require (or optional), or take it out"
            )
        unchecked = not self.tls_server_auth_client and self.tls_server_trust_cert_path is None
        if asked != "none" and unchecked:
            raise ConfigError(
                f"tls.server.need.client.auth={asked} says nothing about who signs the clients' "
                "certificates, and Java would take any: set tls.server.trustCertPath (or "
                "tls.server.authClient=true for the authorities that this machine trusts)"
            )


def _one_of(key: str, text: str, words: tuple[str, ...]) -> str:
    if (word := text.strip().lower()) in words:
        return word
    raise ConfigError(
        f"{key}={text} does not fit, it must be one of {', '.join(filter(None, words))}"
    )


def with_tls_file(properties: Mapping[str, str], default: Path | None = None) -> dict[str, str]:
    """Return `properties` with the TLS keys of the file that `tls.config.file` names.

    Keys of `properties` win. Without the key `default` is read if it is there. Raises ConfigError if
    the file cannot be read, or has a key that does not belong there.
    """
    named = properties.get(FILE_KEY, "").strip()
    if not named and (default is None or not default.is_file()):
        return dict(properties)
    file = Path(named) if named else default
    assert file is not None, "there is a default"
    given = load_properties(file)
    strangers = sorted(set(given).difference(keys_of(TlsConfig)))
    if strangers:
        raise ConfigError(f"{file} has keys that are not of TLS: {', '.join(strangers[:8])}")
    return {**given, **properties, FILE_KEY: str(file)}
