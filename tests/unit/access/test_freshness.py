"""Requests that were signed long ago, or come a second time, are refused; others are not."""

from __future__ import annotations

import pytest

from cometmq.access.config import AccessConfig
from cometmq.access.freshness import WINDOW, Freshness

SEAL = "0123456789abcdef"
SESSION = "0123456789abcdef"
NOW_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def ext(number: int, session: str = SESSION, ms: int = NOW_MS) -> dict[str, str]:
    return {"SignedAt": str(ms), "Nonce": f"{session}-{number}-{SEAL}"}


def test_each_number_is_taken_once_in_any_order() -> None:
    fresh = Freshness(AccessConfig(), Clock())
    order = [1, 3, 2, 100, 50, WINDOW + 50, 51]
    assert [fresh.fault("a", ext(number)) for number in order] == [""] * len(order)
    assert all("come already" in fresh.fault("a", ext(number)) for number in order)
    # Below the window nobody knows any more.
    assert "too late" in fresh.fault("a", ext(49))
    # Another signer, and another account, count for themselves.
    assert fresh.fault("a", ext(1, "f" * 16)) == ""
    assert fresh.fault("b", ext(1)) == ""


@pytest.mark.parametrize(("off_ms", "word"), [(-301_000, "behind"), (301_000, "ahead of")])
def test_a_time_that_is_off_names_both_clocks_and_the_remedy(off_ms: int, word: str) -> None:
    fault = Freshness(AccessConfig(), Clock()).fault("a", ext(1, ms=NOW_MS + off_ms))
    for part in (word, "301 s", "2023-11-14 22:13:20 UTC", "signatureMaxAgeSeconds is 300", "NTP"):
        assert part in fault


def test_a_time_within_the_limit_is_taken() -> None:
    fresh = Freshness(AccessConfig(), Clock())
    assert fresh.fault("a", ext(1, ms=NOW_MS - 299_000)) == ""
    assert fresh.fault("a", ext(2, ms=NOW_MS + 299_000)) == ""


def test_who_does_not_say_when_is_taken_unless_that_is_required() -> None:
    assert Freshness(AccessConfig(), Clock()).fault("a", {}) == ""
    strict = Freshness(AccessConfig(fresh_signatures_required=True), Clock())
    assert "freshSignaturesRequired=true" in strict.fault("a", {})


@pytest.mark.parametrize(
    "fields",
    [
        {"SignedAt": str(NOW_MS)},
        {"Nonce": f"{SESSION}-1-{SEAL}"},
        {"SignedAt": "now", "Nonce": f"{SESSION}-1-{SEAL}"},
        {"SignedAt": "9" * 400, "Nonce": f"{SESSION}-1-{SEAL}"},
        {"SignedAt": str(NOW_MS), "Nonce": "1"},
        {"SignedAt": str(NOW_MS), "Nonce": f"{SESSION}-{'9' * 400}-{SEAL}"},
        {"SignedAt": "9" * 15, "Nonce": f"{SESSION}-1-{SEAL}"},
    ],
)
def test_fields_of_another_form_are_refused(fields: dict[str, str]) -> None:
    assert Freshness(AccessConfig(), Clock()).fault("a", fields)


def test_signers_have_a_limit_and_one_account_a_share_of_it() -> None:
    clock = Clock()
    fresh = Freshness(AccessConfig(max_remembered_signers=16), clock)
    assert [fresh.fault("a", ext(1, f"{n:016x}")) for n in range(4)] == [""] * 4
    assert "maxRememberedSigners is 16" in fresh.fault("a", ext(1, f"{4:016x}"))
    # Others do not suffer, and those that are known go on.
    assert fresh.fault("b", ext(1)) == ""
    assert fresh.fault("a", ext(2, f"{0:016x}")) == ""
    # Who was silent for so long that its requests are too old is forgotten.
    clock.ms += 302_000
    assert fresh.fault("a", ext(1, f"{4:016x}", clock.ms)) == ""
    assert fresh.signer_count == 1
    assert "SignedAt" in fresh.fault("a", ext(1, f"{0:016x}"))


def test_the_memory_of_a_signer_is_bounded() -> None:
    fresh = Freshness(AccessConfig(), Clock())
    for number in (1, 10**14, 10**14 + WINDOW - 1):
        assert fresh.fault("a", ext(number)) == ""
    (signer,) = fresh._signers.values()
    assert signer.seen.bit_length() <= WINDOW
