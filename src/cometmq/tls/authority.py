"""Make an authority and certificates for first steps and tests; never for production.

Its key lies beside what it signs, so anybody who can read the directory can pretend to be any server or
client.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.extras import needs
from cometmq.runtime.clock import Clock

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_AUTHORITY_DAYS: Final = 3650
_DAYS: Final = 397
# A certificate that is valid for less than this is made again at the next start.
_RENEW_BEFORE: Final = datetime.timedelta(days=30)
# Clocks of others may be behind.
_BACKDATED: Final = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of a directory, in PEM format. Keys are not encrypted."""

    directory: Path

    @property
    def authority(self) -> Path:
        """The certificate that clients and servers trust."""
        return self.directory / "ca.pem"

    @property
    def server(self) -> Path:
        return self.directory / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.directory / "server.key"

    @property
    def client(self) -> Path:
        return self.directory / "client.pem"

    @property
    def client_key(self) -> Path:
        return self.directory / "client.key"

    @property
    def java_client(self) -> Path:
        """The `tls.config.file` of a Java client."""
        return self.directory / "java-client.properties"

    def server_properties(self, mode: str = "permissive") -> dict[str, str]:
        """Return the keys with which a server serves TLS, and uses it for its own connections."""
        return {
            "tls.server.mode": mode,
            "tls.server.certPath": str(self.server),
            "tls.server.keyPath": str(self.server_key),
            "tls.server.trustCertPath": str(self.authority),
            "tls.enable": "true",
            "tls.client.certPath": str(self.client),
            "tls.client.keyPath": str(self.client_key),
            "tls.client.trustCertPath": str(self.authority),
        }


def make_certificates(directory: Path, names: Iterable[str], clock: Clock) -> Certificates:
    """Make certificates in `directory` that are missing, expire soon or lack one of `names`.

    Only the owner can read the files. Blocks for a few ms. Raises ConfigError without the library
    `cryptography`, and if the directory cannot be used.
    """
    files = Certificates(directory)
    maker = _Maker(files, clock)
    try:
        # A directory of a store, too, is for its owner alone.
        for made in (directory.parent, directory):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        maker.need_authority()
        maker.need("server", files.server, files.server_key, list(dict.fromkeys(names)))
        maker.need("client", files.client, files.client_key, ["cometmq-client"])
        _write(files.java_client, _java_properties(files).encode())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"certificates cannot be made in {directory}: {error}; remove the directory, and they "
            "are made again"
        ) from error
    return files


class _Maker:
    def __init__(self, files: Certificates, clock: Clock) -> None:
        self._files = files
        self._authority_key_file = files.directory / "ca.key"
        self._now = datetime.datetime.fromtimestamp(clock.now_ms() / 1000, datetime.UTC)
        with needs("certificates", "making certificates"):
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        self._x509, self._hashes, self._serialization, self._ec = x509, hashes, serialization, ec
        self._authority: x509.Certificate | None = None
        self._authority_key: Any = None

    def need_authority(self) -> None:
        """Read the authority, or make one; all that another one signed is made again then."""
        files, x509 = self._files, self._x509
        if files.authority.exists() and self._authority_key_file.exists():
            found = x509.load_pem_x509_certificate(files.authority.read_bytes())
            if self._is_fresh(found):
                self._authority = found
                self._authority_key = self._serialization.load_pem_private_key(
                    self._authority_key_file.read_bytes(), None
                )
                return
        key = self._new_key()
        name = _name(x509, "CometMQ first steps")
        made = (
            self._begun(name, name, key.public_key(), _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(self._usage(signs_certificates=True), critical=True)
            .sign(key, self._hashes.SHA256())
        )
        _write(self._authority_key_file, self._text_of(key))
        _write(files.authority, made.public_bytes(self._serialization.Encoding.PEM))
        self._authority, self._authority_key = made, key

    def need(self, name: str, file: Path, key_file: Path, subjects: list[str]) -> None:
        """Make a certificate unless there is one that serves."""
        if file.exists() and key_file.exists() and self._serves(file, subjects):
            return
        assert self._authority is not None, "the authority comes first"
        x509, key = self._x509, self._new_key()
        public = self._authority.public_key()
        made = (
            self._begun(_name(x509, name), self._authority.subject, key.public_key(), _DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(self._usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [
                        x509.oid.ExtendedKeyUsageOID.SERVER_AUTH,
                        x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH,
                    ][0 if name == "server" else 1 :]
                ),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(self._names(subjects)), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(public),
                critical=False,
            )
            .sign(self._authority_key, self._hashes.SHA256())
        )
        # The key first: a server that reads them now finds a pair that does not fit, and waits.
        _write(key_file, self._text_of(key))
        _write(file, made.public_bytes(self._serialization.Encoding.PEM))

    # -- inside --

    def _serves(self, file: Path, subjects: list[str]) -> bool:
        x509, authority = self._x509, self._authority
        assert authority is not None, "the authority comes first"
        found = x509.load_pem_x509_certificate(file.read_bytes())
        if not self._is_fresh(found) or found.issuer != authority.subject:
            return False
        try:
            found.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001 - of several libraries; whatever it is, a new one helps
            return False
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return set(self._names(subjects)) <= set(names)

    def _is_fresh(self, certificate: x509.Certificate) -> bool:
        return certificate.not_valid_after_utc - self._now > _RENEW_BEFORE

    def _begun(self, subject: Any, issuer: Any, public_key: Any, days: int) -> Any:
        x509 = self._x509
        begun: Any = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _BACKDATED)
            .not_valid_after(self._now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        )
        return begun

    def _usage(self, *, signs_certificates: bool) -> Any:
        return self._x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            encipher_only=False,
            decipher_only=False,
        )

    def _names(self, subjects: list[str]) -> list[Any]:
        names: list[Any] = []
        for subject in subjects:
            try:
                names.append(self._x509.IPAddress(ipaddress.ip_address(subject)))
            except ValueError:
                names.append(self._x509.DNSName(subject))
        return names

    def _new_key(self) -> EllipticCurvePrivateKey:
        # Signing with it costs a server a tenth of the time of RSA.
        return self._ec.generate_private_key(self._ec.SECP256R1())

    def _text_of(self, key: EllipticCurvePrivateKey) -> bytes:
        serialization = self._serialization
        # The only form that Java reads.
        return key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def _name(x509: Any, text: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])


def _java_properties(files: Certificates) -> str:
    return (
        "# For a Java client: -Dtls.enable=true -Dtls.config.file=this file\n"
        "tls.test.mode.enable=false\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={_escaped(files.authority)}\n"
        f"tls.client.certPath={_escaped(files.client)}\n"
        f"tls.client.keyPath={_escaped(files.client_key)}\n"
    )


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\")


def _write(file: Path, data: bytes) -> None:
    """Write a file that only its owner can read; a reader finds all of it or none."""
    written = file.with_name(f".{file.name}.new")
    written.unlink(missing_ok=True)
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
    written.replace(file)
