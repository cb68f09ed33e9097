"""Decide who may copy a master's log, and have its reports counted.

Java's port for slaves serves anybody who reaches it: a stranger can read all messages there, and report
offsets that acknowledge sends of a SYNC_MASTER. Here a slave is admitted

- by its address: from the master's own machine and from `slavesFrom`; from anywhere if
  `protectedMode` is false, `slavesFrom` is empty and there is no access control;
- by a token, where there is access control: the slave asks for it by a signed request over the
  broker's port (ADMIT_SLAVE), and sends it in front of its first report. With access control the own
  machine alone is no reason. Java's slaves have no token, so `slavesFrom` must name them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.protocol.replication import TOKEN_SIZE
from cometmq.remoting.protected import LOGGED_EVERY_S
from cometmq.runtime.randomness import secret_bytes
from cometmq.runtime.sockets.address_list import AddressList, is_own_machine

log = get_logger(__name__)

KEY: Final = "slavesFrom"
# A token is good for one connection, within this time.
TOKEN_S: Final = 10.0
_MOST_TOKENS: Final = 256
# A connection without an admitted address has this time to show a token, and others like it take its
# place when there are so many.
UNKNOWN_S: Final = 5.0
MOST_UNKNOWN: Final = 32


class SlaveAdmission:
    """Admits slaves of one master by address or by token. For the loop's thread only.

    `protected` says that other machines are refused unless listed, `needs_proof` that access
    control is on.
    """

    def __init__(
        self,
        slaves_from: str = "",
        *,
        protected: bool = False,
        needs_proof: bool = False,
        new_token: Callable[[int], bytes] = secret_bytes,
    ) -> None:
        self._listed = AddressList(KEY, slaves_from)
        self._protected = protected
        self.needs_proof = needs_proof
        self._new_token = new_token
        self._loop = asyncio.get_running_loop()
        # Until when each token is good; the oldest first.
        self._tokens: dict[bytes, float] = {}
        self._refusals = RareLine(LOGGED_EVERY_S)

    @property
    def is_open(self) -> bool:
        """Whether every peer that reaches the port is admitted."""
        return not (self._listed or self._protected or self.needs_proof)

    def knows(self, peer_ip: str, local_ip: str) -> bool:
        """Return whether the address of a connection's peer is reason enough to admit it."""
        if self.is_open or peer_ip in self._listed:
            return True
        return not self.needs_proof and is_own_machine(peer_ip, local_ip)

    def issue(self) -> bytes:
        """Return a token for a slave that has proved who it is."""
        now_s = self._loop.time()
        for token, until_s in tuple(self._tokens.items()):
            if until_s < now_s or len(self._tokens) >= _MOST_TOKENS:
                del self._tokens[token]
        token = self._new_token(TOKEN_SIZE)
        self._tokens[token] = now_s + TOKEN_S
        return token

    def redeem(self, token: bytes) -> bool:
        """Return whether a token is valid. Each token is valid only once.

        The time of a look-up by hash does not show how much of a guessed token is right.
        """
        until_s = self._tokens.pop(token, None)
        return until_s is not None and self._loop.time() <= until_s

    def refusal(self, peer_ip: str) -> str:
        """Return why a peer may not copy the log, and the remedies."""
        if self.needs_proof:
            return (
                f"{peer_ip} has not proved to be a slave: give a slave of CometMQ the account of a "
                "broker (innerClientAuthenticationCredentials), and name the address of one of "
                f"Java's in {KEY} of the master"
            )
        return (
            f"{peer_ip} may not copy the log: add it to {KEY} in the master's configuration and "
            "restart the master"
        )

    def note_refusal(self, peer: str, reason: str) -> None:
        """Log that a connection was refused: one line in LOGGED_EVERY_S for all of them."""
        if refused := self._refusals.count():
            log.warning("connections for slaves refused", peer=peer, refused=refused, reason=reason)
