"""Refuse requests that were signed long ago, or that somebody sends a second time.

Java's signatures have neither time nor number, so anybody who records a request can repeat it for as
long as the key lives. Our clients sign two more ext fields:

    SignedAt    when, in ms since 1970, by the client's clock
    Nonce       16 hexadecimal digits that a signer draws when it is made, `-`, a number that grows
                by one with each request, `-`, a seal, which `SecretKey.fault` checks before

A server remembers for each signer the highest number and which of the WINDOW numbers below it have
come, as IPsec does. So it needs memory for each signer, not for each request, and requests may
overtake each other on their way.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from cometmq.access.config import AccessConfig
from cometmq.protocol.command import Ext
from cometmq.remoting.credentials import SIGNED_AT
from cometmq.remoting.signing import NONCE
from cometmq.runtime.clock import Clock

WINDOW: Final = 8_192
_MASK: Final = (1 << WINDOW) - 1
_NONCE: Final = re.compile(r"([0-9a-f]{16})-([0-9]{1,15})-[0-9a-f]{16}")
_SIGNED_AT: Final = re.compile(r"[0-9]{1,15}")
# One account may use up this part of `maxRememberedSigners`.
_SHARE: Final = 4
_SWEEP_AT_MOST_EVERY_MS: Final = 1_000


class _Signer:
    __slots__ = ("account", "highest", "newest_ms", "seen")

    def __init__(self, account: str) -> None:
        self.account = account
        self.highest = -1
        # Bit n stands for the number `highest - n`.
        self.seen = 0
        self.newest_ms = 0


class Freshness:
    """Remembers which signed requests have come. For the loop's thread.

    A restart forgets them: a request may then be repeated until it is too old.
    """

    def __init__(self, config: AccessConfig, clock: Clock) -> None:
        self._is_required = config.fresh_signatures_required
        self._max_age_ms = config.signature_max_age_seconds * 1000
        self._most_signers = config.max_remembered_signers
        self._clock = clock
        self._signers: dict[tuple[str, str], _Signer] = {}
        self._of_account: dict[str, int] = {}
        self._swept_ms = 0

    @property
    def signer_count(self) -> int:
        return len(self._signers)

    def fault(self, account: str, ext: Ext) -> str:
        """Return why a request with a right signature is refused, "" if it is new."""
        signed_at, nonce = ext.get(SIGNED_AT), ext.get(NONCE)
        if signed_at is None and nonce is None and not self._is_required:
            return ""
        if signed_at is None or nonce is None:
            return (
                "the request does not say when it was signed, and freshSignaturesRequired=true "
                "here: send SignedAt and Nonce, as CometMQ's clients do (Java's cannot)"
            )
        match = _NONCE.fullmatch(nonce)
        if match is None or not _SIGNED_AT.fullmatch(signed_at):
            return "SignedAt or Nonce has another form than CometMQ's clients send"
        signed_ms, now_ms = int(signed_at), self._clock.now_ms()
        if abs(now_ms - signed_ms) > self._max_age_ms:
            return self._skew(signed_ms, now_ms)
        signer = self._signer(account, match[1], now_ms)
        if signer is None:
            return (
                f"too many signers within {self._max_age_ms // 1000} s, maxRememberedSigners is "
                f"{self._most_signers} and one account may have a {_SHARE}th: let clients live "
                "longer, or raise it"
            )
        if not _takes(signer, int(match[2])):
            return "a request with this Nonce has come already, or came too late: it was repeated"
        signer.newest_ms = max(signer.newest_ms, signed_ms)
        return ""

    def _skew(self, signed_ms: int, now_ms: int) -> str:
        off_s = abs(now_ms - signed_ms) / 1000
        where = "behind" if signed_ms < now_ms else "ahead of"
        return (
            f"SignedAt is {_written(signed_ms)} by the client's clock, which is {off_s:.0f} s {where} "
            f"this server's {_written(now_ms)}, and signatureMaxAgeSeconds is "
            f"{self._max_age_ms // 1000}: set both clocks (NTP), unless somebody repeats an old request"
        )

    def _signer(self, account: str, session: str, now_ms: int) -> _Signer | None:
        key = account, session
        signer = self._signers.get(key)
        if signer is not None:
            return signer
        share = max(self._most_signers // _SHARE, 1)
        if len(self._signers) >= self._most_signers or self._of_account.get(account, 0) >= share:
            self._sweep(now_ms)
            full = len(self._signers) >= self._most_signers
            if full or self._of_account.get(account, 0) >= share:
                return None
        signer = self._signers[key] = _Signer(account)
        self._of_account[account] = self._of_account.get(account, 0) + 1
        return signer

    def _sweep(self, now_ms: int) -> None:
        """Forget signers all of whose requests are too old to be taken again."""
        if now_ms - self._swept_ms < _SWEEP_AT_MOST_EVERY_MS:
            return
        self._swept_ms = now_ms
        oldest_ms = now_ms - self._max_age_ms
        for key in [key for key, of in self._signers.items() if of.newest_ms < oldest_ms]:
            account = self._signers.pop(key).account
            self._of_account[account] -= 1
            if not self._of_account[account]:
                del self._of_account[account]


def _takes(signer: _Signer, number: int) -> bool:
    ahead = number - signer.highest
    if ahead > 0:
        signer.seen = (signer.seen << ahead & _MASK) | 1 if ahead < WINDOW else 1
        signer.highest = number
        return True
    if -ahead >= WINDOW:
        return False
    bit = 1 << -ahead
    if signer.seen & bit:
        return False
    signer.seen |= bit
    return True


def _written(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
