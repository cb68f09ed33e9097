"""Texts about packages, of which none needs to be installed here."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from cometmq._version import __version__
from cometmq.model.reports.finding import Finding, Severity, worst
from cometmq.runtime.host.installation import check_installation

GOOD = {"cometmq": __version__, "uvloop": "0.21.0", "msgspec": "0.20.0", "numpy": "2.4.6"}
REQUIRED = ["msgspec>=0.20", "numpy>=2.0", "uvloop>=0.21; sys_platform != 'win32'"]


def findings(packages: Mapping[str, str], interpreted: str = "") -> dict[str, Finding]:
    found = check_installation(interpreted, version_of=packages.get, requirements=lambda: REQUIRED)
    return {finding.check: finding for finding in found}


def test_a_good_installation_has_no_faults() -> None:
    assert worst(findings(GOOD).values()) is Severity.OK


def test_the_reason_why_it_is_interpreted_is_told_with_its_remedy() -> None:
    found = findings(GOOD, "COMETMQ_PURE is set")["compiled modules"]
    assert (found.severity, "unset COMETMQ_PURE" in found.remedy) == (Severity.WARNING, True)
    found = findings(GOOD, "not compiled; see scripts/compile")["compiled modules"]
    assert f"make compiled PYTHON={sys.executable}" in found.remedy, "for this Python, no other"


def test_a_missing_event_loop_is_a_warning() -> None:
    without = {name: version for name, version in GOOD.items() if name != "uvloop"}
    assert findings(without)["event loop"].severity is Severity.WARNING
    assert findings(without)["dependencies"].severity is Severity.OK


def test_missing_and_old_dependencies_are_errors() -> None:
    found = findings({**GOOD, "msgspec": "0.9.1", "numpy": "2.0.0rc1"})["dependencies"]
    assert found.severity is Severity.ERROR
    assert found.value == "msgspec 0.9.1 is older than 0.20"
    without = {name: version for name, version in GOOD.items() if name != "numpy"}
    assert findings(without)["dependencies"].value == "numpy is missing"


def test_two_clients_that_install_one_module_are_in_conflict() -> None:
    one = {**GOOD, "rocketmq-client-python": "2.0.0"}
    assert findings(one)["other clients"].severity is Severity.OK
    found = findings({**one, "rocketmq": "0.4.4"})["other clients"]
    assert found.severity is Severity.WARNING
    assert "rocketmq 0.4.4 and rocketmq-client-python 2.0.0" in found.value


def test_another_copy_than_the_installed_one_is_told() -> None:
    assert findings({**GOOD, "cometmq": "0.0.1"})["package"].severity is Severity.WARNING
    without = {name: version for name, version in GOOD.items() if name != "cometmq"}
    assert findings(without)["package"].severity is Severity.WARNING
