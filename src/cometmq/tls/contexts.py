"""Set up TLS for the connections of clients (Java: TlsSystemConfig, TlsHelper)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from cometmq.errors import ConfigError, IllegalArgumentError
from cometmq.runtime.configuration.config import load_properties
from cometmq.tls.certificate_files import check_is_file

# Java's keys. While test mode is on, as it is by default, Java checks no certificate.
_TEST_MODE: Final = "tls.test.mode.enable"
_PREFIX: Final = "tls.client."


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS settings with which a client connects to name servers and brokers.

    All files are in PEM format.

    ca_file: the certificates that may sign a server's certificate; by default those that the system
        trusts.
    cert_file, key_file: the client's own certificate chain and its private key, for servers that ask
        for them (`tls.server.need.client.auth`); without `key_file` the key is in `cert_file`.
    key_password: the password of an encrypted private key. `repr` does not show it, and settings
        with a password cannot be pickled.
    verify: with False anybody can pretend to be the server, as with Java's clients unless
        `tls.client.authServer` is set.
    check_hostname: whether the server's certificate must name the host or address that the client
        connects to. Clients connect to the addresses that brokers register (`brokerIP1`), and
        certificates made for RocketMQ often do not name these. Java never checks names.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.cert_file is None and (self.key_file, self.key_password) != (None, None):
            raise IllegalArgumentError(
                "a private key without its certificate; give cert_file to Tls too"
            )
        if self.ca_file is not None and not self.verify:
            raise IllegalArgumentError(
                f"ca_file is {self.ca_file}, but verify is False, so that nobody would look at it; "
                "leave out one of the two"
            )

    def __reduce__(self) -> str | tuple[object, ...]:
        if self.key_password is not None:
            _refuse_pickling()
        return Tls, (
            self.ca_file,
            self.cert_file,
            self.key_file,
            None,
            self.verify,
            self.check_hostname,
        )

    @classmethod
    def from_properties(cls, path: str | Path) -> Tls:
        """Return the settings of a Java client's TLS file (`tls.config.file`), as Java reads them.

        The keys are `tls.client.trustCertPath`, `.certPath`, `.keyPath`, `.keyPassword`,
        `.authServer`, and `tls.test.mode.enable`. While test mode is on, which is the default, the
        other keys have no effect. Raises ConfigError if the file cannot be read.
        """
        given = load_properties(path)

        def flag(name: str, default: bool) -> bool:
            return given.get(name, str(default)).strip().lower() == "true"

        if flag(_TEST_MODE, True):
            return cls(verify=False)
        verify = flag(f"{_PREFIX}authServer", False)
        cert_file = given.get(f"{_PREFIX}certPath") or None
        return cls(
            ca_file=(given.get(f"{_PREFIX}trustCertPath") or None) if verify else None,
            cert_file=cert_file,
            key_file=(given.get(f"{_PREFIX}keyPath") or None) if cert_file else None,
            key_password=(given.get(f"{_PREFIX}keyPassword") or None) if cert_file else None,
            verify=verify,
            check_hostname=False,
        )

    def context(self) -> ssl.SSLContext:
        """Read the files and return the context. Raises ConfigError that names an unusable file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if self.ca_file is not None:
            try:
                check_is_file(self.ca_file)
                context.load_verify_locations(self.ca_file)
            except OSError as error:
                raise _unusable("ca_file", self.ca_file, error) from error
        elif self.verify:
            context.load_default_certs()
        if self.cert_file is not None:
            self._load_own(context, self.cert_file)
        return context

    def _load_own(self, context: ssl.SSLContext, cert_file: str) -> None:
        def password() -> str:
            # OpenSSL calls this only for an encrypted key; without it OpenSSL asks on the terminal.
            if self.key_password is None:
                raise ConfigError(
                    f"the private key of {cert_file} is encrypted; give key_password to Tls too"
                )
            return self.key_password

        try:
            for path in (cert_file, self.key_file or cert_file):
                check_is_file(path)
            context.load_cert_chain(cert_file, self.key_file, password)
        except OSError as error:
            files = cert_file if self.key_file is None else f"{cert_file} with {self.key_file}"
            raise _unusable("cert_file", files, error) from error


def tls_of(tls: object) -> Tls | None:
    """Return the settings that the parameter `tls` of a client stands for.

    True stands for Tls(), False and None for no TLS. Raises IllegalArgumentError for anything else.
    """
    if tls is None or isinstance(tls, Tls):
        return tls
    if isinstance(tls, bool):
        return Tls() if tls else None
    raise IllegalArgumentError(f"tls is {tls!r:.80}; pass True or Tls(ca_file=…)")


def handshake_fault(error: OSError) -> str:
    """Return the text that says why a TLS connection failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        fault = f"its certificate is refused: {error.verify_message}"
        if error.verify_code in _NAME_FAULTS:
            return f"{fault}; give the server one with that name, or pass Tls(check_hostname=False)"
        return f"{fault}; pass Tls(ca_file=…) with the certificate that signed the server's"
    if isinstance(error, ssl.SSLError):
        if "ACCESS_DENIED" in (error.reason or ""):
            return (
                "it serves only its own machine (protectedMode); its log says what to change there"
            )
        return f"the TLS handshake failed: {_reason(error)}; does that server talk TLS?"
    if isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
        return "it was closed during the TLS handshake; does that server talk TLS?"
    return f"{error}"


# X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_NAME_FAULTS: Final = (62, 64)


def _unusable(name: str, files: str, error: OSError) -> ConfigError:
    return ConfigError(f"{name} of Tls is {files}, which cannot be used: {_reason(error)}")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason is not None:
        return error.reason.replace("_", " ").lower()
    return error.strerror or str(error)


def _refuse_pickling() -> NoReturn:
    raise TypeError(
        "Tls with a key_password is not pickled, so that secrets stay where they are; create it in "
        "the process that uses it"
    )
