"""Certificates for tests of TLS, made by the `openssl` program: none lie in the tree."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "for-the-key"


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, in PEM format."""

    certificate: Path
    key: Path


def client_hello() -> bytes:
    """Return what a client sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, sent).do_handshake()
    return sent.read()


class Authority:
    """Signs certificates; `certificate` is its own. Skips the test without openssl, in CI fails it."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            sentence = "not installed: the openssl program, which makes the certificates"
            if os.environ.get("CI") == "true":
                pytest.fail(sentence)
            pytest.skip(sentence)
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = self._new_key("authority")
        self.certificate = directory / "authority.pem"
        self._openssl(
            "req", "-x509", "-new", "-key", self._key, "-days", "2", "-subj", "/CN=authority",
            "-addext", "basicConstraints=critical,CA:TRUE", "-out", self.certificate,
        )  # fmt: skip

    def sign(self, name: str, *subjects: str) -> Pair:
        """A certificate for `subjects`, as `IP:127.0.0.1` or `DNS:localhost`."""
        key, request = self._new_key(name), self._directory / f"{name}.csr"
        certificate, extensions = request.with_suffix(".pem"), request.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={','.join(subjects or ('DNS:' + name,))}\n")
        self._openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key,
            "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
        return Pair(certificate, key)

    def encrypted(self, pair: Pair) -> Pair:
        """The same with a key that PASSWORD opens."""
        key = pair.key.with_suffix(".encrypted")
        self._openssl(
            "pkcs8", "-topk8", "-in", pair.key, "-passout", f"pass:{PASSWORD}", "-out", key
        )
        return Pair(pair.certificate, key)

    def _new_key(self, name: str) -> Path:
        key = self._directory / f"{name}.key"
        self._openssl(
            "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key
        )
        return key

    @staticmethod
    def _openssl(*arguments: str | Path) -> None:
        done = subprocess.run(
            ["openssl", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
