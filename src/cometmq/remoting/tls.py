"""TLS of the clients' connections (Java: TlsSystemConfig, TlsHelper)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from cometmq.errors import ConfigError, IllegalArgumentError
from cometmq.runtime.config import load_properties

# tls.client.… in Java, where no certificate is looked at unless told to.
_TEST_MODE: Final = "tls.test.mode.enable"
_PREFIX: Final = "tls.client."


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client talks TLS to name servers and brokers. Files are in PEM format.

    ca_file: the certificates that may sign a server's; without it those that the system trusts.
    cert_file, key_file: the client's own certificate chain and its private key, for servers that ask
        for one (`tls.server.need.client.auth`); without `key_file` the key stands in `cert_file`.
    key_password: of an encrypted private key; it shows in no `repr` and is not pickled.
    verify: with False anybody may pretend to be the server, as with Java's clients unless
        `tls.client.authServer` is set.
    check_hostname: whether the server's certificate must name the host or address that the client
        connects to. Brokers are connected to by the addresses that they register (`brokerIP1`), which
        certificates made for RocketMQ often lack. Java never checks names.
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
        """The settings of a Java client's TLS file (`tls.config.file`), as Java understands them:
        `tls.client.trustCertPath`, `.certPath`, `.keyPath`, `.keyPassword`, `.authServer`, and
        `tls.test.mode.enable`, with which (as by default) the others do not count.

        Raises ConfigError for a file that cannot be read.
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
        """Reads the files. Raises ConfigError naming the one that does not fit."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if self.ca_file is not None:
            try:
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
            # Asked for only if the key is encrypted; without this OpenSSL would ask the terminal.
            if self.key_password is None:
                raise ConfigError(
                    f"the private key of {cert_file} is encrypted; give key_password to Tls too"
                )
            return self.key_password

        try:
            context.load_cert_chain(cert_file, self.key_file, password)
        except OSError as error:
            files = cert_file if self.key_file is None else f"{cert_file} with {self.key_file}"
            raise _unusable("cert_file", files, error) from error


def tls_of(tls: object) -> Tls | None:
    """What the parameter `tls` of a client means: True is Tls(), False and None are none.

    Raises IllegalArgumentError for anything else.
    """
    if tls is None or isinstance(tls, Tls):
        return tls
    if isinstance(tls, bool):
        return Tls() if tls else None
    raise IllegalArgumentError(f"tls is {tls!r:.80}; pass True or Tls(ca_file=…)")


def handshake_fault(error: OSError) -> str:
    """What to tell of a TLS connection that did not come about."""
    if isinstance(error, ssl.SSLCertVerificationError):
        fault = f"its certificate is refused: {error.verify_message}"
        if error.verify_code in _NAME_FAULTS:
            return f"{fault}; give the server one with that name, or pass Tls(check_hostname=False)"
        return f"{fault}; pass Tls(ca_file=…) with the certificate that signed the server's"
    if isinstance(error, ssl.SSLError):
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
