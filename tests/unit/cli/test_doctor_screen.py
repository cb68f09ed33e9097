"""A finding of `cometmq doctor` that concerns several things is shown once for all of them, the
worst first.
"""

from __future__ import annotations

import json

import pytest

from cometmq.cli.doctor.screen import print_json, print_table
from cometmq.model.reports.finding import error, ok, warning

REACHED = "127.0.0.1 is reached by this machine only: it is a loopback address"


def test_ten_equal_warnings_are_one_line_below_the_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [
        ok("name server n:1", "answered"),
        *(warning(f"broker b{n}: address", REACHED, "set brokerIP1") for n in range(10)),
        error("broker b3: disk", "95% used", "free space"),
    ]
    print_table({"Cluster": found})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:] if line.startswith("  ") and line[2] != " "] == [
        "error",
        "warning",
        "ok",
    ]
    assert sum(REACHED in line for line in lines) == 1
    assert "broker b0, broker b1, broker b2 and 7 more: address" in "\n".join(lines)
    assert "1 error and 10 warnings in 12 checks." in lines
    print_json({"Cluster": found})
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 12, "programs get each"
