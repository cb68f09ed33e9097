"""Judge requests by the accounts of ACL 1.0 (Java: PlainAccessValidator, PlainPermissionManager)."""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.access.asked import Asked
from cometmq.access.config import AccessConfig
from cometmq.protocol.request_type import ResourceKind
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import BlockingClock
from cometmq.runtime.exposition import Exposition
from cometmq.runtime.files import Files
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import Workers


class PlainRules:
    """The accounts in `plain_acl.yml` and beneath `conf/acl`; see `Rules`."""

    def __init__(
        self, config: AccessConfig, *, clock: BlockingClock, files: Files, workers: Workers
    ) -> None:
        raise NotImplementedError

    def register(self, handlers: Handlers) -> None: ...

    async def open(self) -> None: ...

    def start(self, tasks: TaskOwner) -> None: ...

    async def close(self) -> None: ...

    def check(self, asked: Asked) -> None: ...

    def check_resource(self, asked: Asked, kind: ResourceKind, name: str) -> None: ...

    def collect(self, out: Exposition) -> Iterator[None]:
        yield
