"""The programs of the guide to administration run, one after the other, as a reader types them."""

from __future__ import annotations

import re

from tests.integration.test_readme import ROOT, against, patient_announcements

from cometmq.testing import Cluster

__all__ = ["patient_announcements"]

GUIDE = (ROOT / "docs" / "administration.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_programs_of_the_guide_run() -> None:
    assert len(BLOCKS) == 5
    with Cluster() as cluster:
        shown = against(cluster, "\n".join(BLOCKS))
    assert "DefaultCluster broker-a 0 127.0.0.1:" in shown
    assert "b'one espresso' ('O-1',)" in shown
    assert "check the topic's name" in shown


def test_the_program_that_asks_for_explanations_runs() -> None:
    text = (ROOT / "docs" / "explain.md").read_text()
    [program] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with Cluster() as cluster:
        shown = against(cluster, _MAKES_A_GROUP + program)
    assert "group billing is not behind" in shown
    assert "['caught-up']" in shown


_MAKES_A_GROUP = """
import cometmq
with cometmq.AdminClient("127.0.0.1:9876") as admin:
    admin.groups.create("billing")
"""
