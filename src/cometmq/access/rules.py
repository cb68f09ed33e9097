"""Say what a kind of access control offers to the server that it guards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from cometmq.access.access_request import AccessRequest
from cometmq.metrics.exposition import Exposition
from cometmq.protocol.request_type import AnyRequestType, ResourceKind
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.tasks import TaskOwner


class Identity(NamedTuple):
    """Holds what a server is called; a name server has neither cluster nor name."""

    cluster: str
    name: str
    address: str


class Rules(Protocol):
    """Accounts or users with their permissions. For the loop's thread.

    A server makes its rules, lets them `register` the requests that administer them, opens them
    before it listens, starts them, and closes them when it serves nobody any more.
    """

    def register(self, handlers: Handlers) -> None:
        """Serve the requests by which administrators read and change these rules."""

    async def open(self) -> None:
        """Read the files. Raises ConfigError."""

    def start(self, tasks: TaskOwner) -> None:
        """Begin to watch the files."""

    async def close(self) -> None:
        """End threads and write what is due. Idempotent."""

    def check(self, asked: AccessRequest) -> None:
        """Raise AccessRefusedError unless the sender is known and may send this request.

        Check the signature first: no body is decoded for a sender without one.
        """

    def judge(self, asked: AccessRequest) -> None:
        """Check the rights of a request that passed `check` once more, by the rules that hold now.

        Skip the signature: a second check would take it for a replay. Raises AccessRefusedError.
        """

    def check_resource(self, asked: AccessRequest, kind: ResourceKind, name: str) -> None:
        """Check one more resource, which the handler of a request that passed `check` has found.

        Raises AccessRefusedError.
        """

    def sender_of(self, asked: AccessRequest) -> str:
        """Return the account of a request that passed `check`; "" if a white list let it pass, and it
        proves no account.
        """

    def permits(
        self, account: str, peer_ip: str, row: AnyRequestType, kind: ResourceKind, name: str
    ) -> bool:
        """Say whether an account may send the requests of a row about this resource now.

        "" stands for a sender that was let in without a name: by its address, or because the
        request is for everybody.
        """

    def collect(self, out: Exposition) -> Iterator[None]:
        """Write the metrics of these rules."""
