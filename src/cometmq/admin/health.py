"""Judge a running cluster, as `cometmq doctor` does."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.admin.checkup import ClusterCheckup
from cometmq.admin.room import Room
from cometmq.admin.servers import Servers
from cometmq.model.reports.finding import Finding


class Health(Room):
    """Checks name servers, brokers, their clocks, disks and addresses, and changes nothing."""

    def __init__(self, servers: Servers, checkup: Callable[[], ClusterCheckup]) -> None:
        super().__init__(servers)
        self._checkup = checkup

    async def findings(self) -> list[Finding]:
        """Return what was found at each server, also where all is well; of clients nothing.

        A server that does not answer is a finding, not an error. Each question has three seconds.
        """
        # The check-up has connections of its own: it looks names up, and meets servers as clients do.
        async with self._checkup() as checkup:
            return await checkup.check()
