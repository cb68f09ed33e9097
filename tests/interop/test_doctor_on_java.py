"""`cometmq doctor` asks the Java name server and broker, and finds nothing wrong with them."""

from __future__ import annotations

import pytest
from tests.interop.on_java import MARKS, namesrv
from tests.waits import WAIT_S

from cometmq.admin.checkup import ClusterCheckup
from cometmq.model.reports.finding import Severity

__all__ = ["namesrv"]
pytestmark = MARKS


@pytest.mark.asyncio
async def test_a_java_cluster_is_judged_as_ours_is(namesrv: str) -> None:
    async with ClusterCheckup([namesrv], timeout_s=WAIT_S) as checkup:
        found = await checkup.check()
    checks = {finding.check.partition(": ")[2] for finding in found}
    assert {"clock", "address", "disk", "consumers"} <= checks
    versions = [finding.value for finding in found if "answered in" in finding.value]
    assert len(versions) == 2
    assert all("Java, speaks V5_" in version for version in versions)
    # It advertises loopback and listens on all addresses; the disk may be full.
    faults = {finding.check.partition(": ")[2] for finding in found if finding.severity}
    assert faults <= {"address", "disk"}
    assert all(
        finding.severity is not Severity.ERROR for finding in found if "disk" not in finding.check
    )
