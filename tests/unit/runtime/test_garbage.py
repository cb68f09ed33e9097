"""Passes of the garbage collector in a server whose tables grow."""

from __future__ import annotations

import subprocess
import sys

GROWS = """
import gc
from cometmq.runtime.garbage import keep_passes_short

keep_passes_short()
looked_at = []

def count(phase, info):
    if phase == "start" and info["generation"] == 2:
        looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

gc.callbacks.append(count)
table = {number: [number] for number in range(400_000)}
print(max(looked_at), gc.get_freeze_count())
"""


def test_a_pass_looks_at_what_is_new_only() -> None:
    """It takes as long as it has objects to look at, and nobody is served meanwhile."""
    answer = subprocess.run(
        [sys.executable, "-c", GROWS], capture_output=True, text=True, check=True
    )
    most, exempt = map(int, answer.stdout.split())
    assert most < 50_000
    assert exempt > 300_000
