"""Signatures and seals are the same as by the standard library's HMAC, field by field."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting import signing
from cometmq.remoting.signing import (
    NONCE,
    SIGNATURE,
    SigningKey,
    order_of,
    seal_of,
    signature_of,
)

KEYS = st.text(max_size=256)
NAMES = st.sampled_from(["a", "b", "AccessKey", "SignedAt", "Zz", NONCE, SIGNATURE]) | st.text(
    max_size=4
)


@given(KEYS, st.binary(max_size=300), st.binary(max_size=300))
def test_a_key_makes_the_codes_of_hmac(key: str, head: bytes, body: bytes) -> None:
    wanted = hmac.new(key.encode(errors="replace"), head + body, hashlib.sha1).digest()
    made = SigningKey(key.encode(errors="replace").decode())
    assert made.code(head, body) == wanted
    assert made.code(head, memoryview(body)) == wanted  # and once more: a key is not used up


@given(st.dictionaries(NAMES, st.text(max_size=8), max_size=8), st.binary(max_size=20))
def test_fields_are_signed_in_the_order_of_their_names(ext: dict[str, str], body: bytes) -> None:
    names = sorted(name for name in ext if name != SIGNATURE)
    text = "".join(ext[name] for name in names)
    order = order_of(ext)
    assert order.text(ext) == text
    encoded = text.encode(errors="replace")
    if encoded.decode() == text:
        wanted = b64encode(hmac.new(b"secret", encoded + body, hashlib.sha1).digest())
        assert signature_of(SigningKey("secret"), text, body) == wanted
    names = [name for name in names if name != NONCE]
    lengths = [len(ext[name]) for name in names]
    assert order.sealed("n-1", 310, ext, 7) == f"seal n-1;310;7;{lengths};" + "\0".join(names)


def test_a_seal_is_the_beginning_of_a_code() -> None:
    wanted = hmac.new(b"secret", b"seal", hashlib.sha1).hexdigest()[:16]
    assert seal_of(SigningKey("secret"), "seal") == wanted


def test_a_key_does_not_show_itself() -> None:
    assert "secret" not in repr(SigningKey("secret"))


@pytest.fixture
def remembered() -> dict[tuple[str, ...], signing.FieldOrder]:
    orders = signing._orders
    orders.clear()
    return orders


def test_made_up_names_do_not_fill_the_memory(
    remembered: dict[tuple[str, ...], signing.FieldOrder],
) -> None:
    for number in range(3_000):
        ext = {f"name-{number}": "v", "a": "w"}
        assert order_of(ext).text(ext) == "wv"
    assert len(remembered) <= 256
    remembered.clear()
    order_of({"n" * 5_000: "v"})
    order_of({f"n{number}": "v" for number in range(1_000)})
    assert not remembered
