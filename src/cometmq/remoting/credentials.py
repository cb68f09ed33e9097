"""Sign requests with an access key and its secret key.

Java: SessionCredentials, AclSigner, AclClientRPCHook. A signed request has these ext fields:

    AccessKey      the name under which the server knows the secret key
    SecurityToken  the token, with temporary credentials only
    SignedAt       when it was signed, in ms since 1970 (ours)
    Nonce          16 hexadecimal digits of the signer, `-`, a number that grows by one with each
                   request, `-`, a seal of 16 hexadecimal digits (ours)
    Signature      Base64(HMAC-SHA1(secret key, all other ext values in the order of their names,
                   then the body)), texts in UTF-8

The signature covers values and neither code, names nor lengths: anybody who records a request could
move bytes from one field to the next, rename fields, or send it with another code. The seal is an HMAC
with the same key over all of these.

Servers of Java sign and check SignedAt and Nonce as they do all fields, and make nothing of them. Ours
recognise by them old requests, and requests that somebody sends again (`cometmq.access.freshness`).

Servers of 4.x (ACL 1.0) and of 5.x (ACL 2.0, where an access key is called a user and a secret key
a password) check the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from cometmq.errors import AccessDeniedError, IllegalArgumentError, RemoteError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.signing import (
    NONCE,
    SIGNATURE,
    SigningKey,
    order_of,
    seal_of,
    signature_of,
)
from cometmq.runtime.clock import Clock
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.surroundings import current

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the field's name
SIGNED_AT: Final = "SignedAt"
# Fields that name the sender of a request and prove it: for the server that is asked, and for nobody
# else.
SIGNING_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SIGNED_AT, NONCE})
_SIGNER_BYTES: Final = 8

# The texts by which servers deny access, and what the user can do about each. Servers of 4.x give
# these refusals the code SYSTEM_ERROR, servers of 5.x NO_PERMISSION.
_DENIALS: Final = (
    (
        re.compile(r"no accesskey is configured|username cannot be null", re.IGNORECASE),
        (
            "it wants requests to be signed: pass credentials=Credentials(access_key, secret_key) "
            "(in Spark the options accessKey and secretKeyFile)"
        ),
    ),
    (
        re.compile(r"check signature failed", re.IGNORECASE),
        "the server knows another secret key for this access key: check secret_key",
    ),
    (
        re.compile(
            r"no acl config for|\buser:.* (is )?not found|\buser:.* is disabled", re.IGNORECASE
        ),
        "it does not know this access key, or no longer: check access_key",
    ),
    (
        re.compile(
            r"no (default )?permission for|has no permission to access|need admin permission",
            re.IGNORECASE,
        ),
        "the access key is known but may not do this: have it allowed, or use another one",
    ),
    (
        re.compile(r"^not fresh: ", re.IGNORECASE),
        "its clock and this one's must agree, and each request is taken once",
    ),
    (
        re.compile(r"^request code \d+ .* to adminFrom in ", re.DOTALL),
        "servers without access control know administrators by their address",
    ),
)
# How a server that serves its own machine only says so. No credentials help there.
_PROTECTED: Final = "(protectedMode)"
_DENYING_CODES: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key with its secret key; temporary ones have a token (Java: SessionCredentials).

    `repr` shows neither the secret key nor the token. Credentials cannot be pickled, so each process
    that needs them has to read them itself. Raises IllegalArgumentError for texts that no server
    knows: empty ones, and those with white space around them, such as the line end of a file.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_text("access_key", self.access_key)
        _check_text("secret_key", self.secret_key)
        if self.security_token is not None:
            _check_text("security_token", self.security_token)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Credentials are not pickled, so that secrets stay where they are; create them in the "
            "process that uses them"
        )


class Signer:
    """Signs requests with `credentials`, after the hooks have added their fields.

    `clock` and `randomness` are by default those of the calling code's surroundings.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        around = current()
        self._credentials = credentials
        self._now_ms = (clock or around.clock).now_ms
        self._prefix = (randomness or around.randomness).token_hex(_SIGNER_BYTES) + "-"
        self._count = 0
        self._key = SigningKey(credentials.secret_key)

    def sign(self, command: RemotingCommand) -> None:
        ext = command.ext
        ext[ACCESS_KEY] = self._credentials.access_key
        token = self._credentials.security_token
        if token is not None:
            ext[SECURITY_TOKEN] = token
        self._count = count = self._count + 1
        ext[SIGNED_AT] = str(self._now_ms())
        number = f"{self._prefix}{count}"
        sealed = order_of(ext).sealed(number, command.code, ext, len(command.body))
        ext[NONCE] = f"{number}-{seal_of(self._key, sealed)}"
        text = order_of(ext).text(ext)
        ext[SIGNATURE] = signature_of(self._key, text, command.body).decode()


def signature(ext: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> str:
    """Return the `Signature` of a request with these ext fields; an old `Signature` is ignored."""
    return signature_of(SigningKey(secret_key), order_of(ext).text(ext), body).decode()


def check_credentials(credentials: object) -> Credentials | None:
    """Return `credentials`. Raise IllegalArgumentError if they are not Credentials or None."""
    if credentials is None or isinstance(credentials, Credentials):
        return credentials
    # The text does not show the value: it may be the secret itself.
    raise IllegalArgumentError(
        f"credentials is a {type(credentials).__name__}; pass Credentials(access_key, secret_key)"
    )


def refused(answer: RemotingCommand, address: str, what: str) -> RemoteError:
    """Return the error for an answer whose code is not success.

    It is an AccessDeniedError if the server at `address` refused because of who asked.
    """
    try:
        name = ResponseCode(answer.code).name
    except ValueError:
        name = "unknown to this client"
    text = f"{what} was refused by {address} with code {answer.code} ({name}): {answer.remark}"
    kind = RemoteError
    if (remedy := _remedy(answer)) is not None:
        kind, text = AccessDeniedError, f"{text.rstrip('.')}; {remedy}"
    elif is_protected(answer.remark):
        kind = AccessDeniedError  # the server's own words say what to do
    return kind(text, code=answer.code, remark=answer.remark, address=address)


def is_denied(answer: RemotingCommand) -> bool:
    """Say whether a server refused because of who signed the request, or because nobody did."""
    return _remedy(answer) is not None


def is_protected(remark: str | None) -> bool:
    """Say whether these are the words of a server that serves its own machine only."""
    return remark is not None and _PROTECTED in remark


def _remedy(answer: RemotingCommand) -> str | None:
    if answer.code not in _DENYING_CODES or not answer.remark:
        return None
    for said, remedy in _DENIALS:
        if said.search(answer.remark):
            return remedy
    return None


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise IllegalArgumentError(f"{name} is a {type(value).__name__}; pass a text")
    if not value or value != value.strip():
        fault = "is empty" if not value.strip() else "has white space around it"
        raise IllegalArgumentError(f"{name} {fault}; pass it as the server knows it")
