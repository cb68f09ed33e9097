"""Settings that do not fit, do nothing or contradict each other, as `cometmq doctor -c` shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.operation.settings_check import check_settings
from cometmq.model.reports.finding import Finding, Severity
from cometmq.runtime.configuration.config import load_properties

GIB = 2**30
NAMES = {"broker.example": "10.0.0.5"}
GOOD = {"brokerIP1": "10.0.0.5", "namesrvAddr": "10.0.0.1:9876", "storePathRootDir": "/data"}


def findings(**settings: str) -> dict[str, Finding]:
    """Return what is found on the machine 10.0.0.5 with 4 GiB, without what is as it should be."""
    found, _ = check_settings(
        {**GOOD, **settings},
        memory_bytes=4 * GIB,
        address_of=lambda host: NAMES.get(host, host if host[0].isdigit() else None),
        is_own=lambda address: address in ("10.0.0.5", "2001:db8::5"),
    )
    return {finding.check: finding for finding in found if finding.severity}


def test_good_settings_have_no_faults() -> None:
    assert findings() == {}
    assert findings(brokerIP1="broker.example") == {}


@pytest.mark.parametrize(
    ("key", "value", "severity"),
    [
        ("listenPort", "99999", Severity.ERROR),
        ("messageDelayLevel", "1s 5x", Severity.ERROR),
        ("namesrvAddr", "10.0.0.1", Severity.ERROR),
        ("namesrvAddr", "", Severity.WARNING),
        ("brokerId", "1", Severity.WARNING),
        ("brokerIP1", "nowhere", Severity.ERROR),
        ("brokerIP1", "127.0.0.1", Severity.WARNING),
        ("brokerIP1", "172.17.0.2", Severity.WARNING),
        ("brokerIP1", "10.0.0.6", Severity.WARNING),
        ("brokerIP1", "10.0.0.5:10911", Severity.ERROR),
        ("brokerIP1", "fe80::5%eth0", Severity.ERROR),
        ("brokerIP1", "10.0.0.5;10.0.0.6", Severity.ERROR),
        ("brokerIP1", "2001:db8::5", Severity.WARNING),
        ("brokerIP2", "127.0.0.1", Severity.WARNING),
        ("brokerIP2", "10.0.0.5:10912", Severity.ERROR),
        ("diskMaxUsedSpaceRatio", "88", Severity.WARNING),
        ("enableCalcFilterBitMap", "true", Severity.WARNING),
        ("maxMessageSize", "16777216", Severity.WARNING),
    ],
)
def test_each_fault_is_found_under_its_key(key: str, value: str, severity: Severity) -> None:
    found = findings(**{key: value})
    assert [(finding.check, finding.severity) for finding in found.values()] == [(key, severity)]


def test_a_slave_keeps_its_id_and_needs_one() -> None:
    assert findings(brokerRole="SLAVE", brokerId="1") == {}
    (found,) = findings(brokerRole="SLAVE").values()
    assert (found.check, found.severity) == ("brokerId", Severity.ERROR)


def test_a_misspelt_key_is_told_with_its_line_and_the_key_that_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\nflushDiskTyp=SYNC_FLUSH\n")
    found, _ = check_settings(load_properties(file), file=file, is_own=lambda _: True)
    (wrong,) = [finding for finding in found if finding.severity is Severity.ERROR]
    assert wrong.check == "flushDiskTyp (line 2)"
    assert "did you mean flushDiskType?" in wrong.remedy


def test_keys_of_java_that_do_nothing_here_are_no_fault() -> None:
    found, _ = check_settings({**GOOD, "sendMessageThreadPoolNums": "4"}, is_own=lambda _: True)
    (reported,) = [finding for finding in found if finding.check == "keys without effect"]
    assert (reported.severity, "sendMessageThreadPoolNums" in reported.value) == (Severity.OK, True)


def test_a_pool_that_has_no_effect_or_no_room_is_told() -> None:
    assert "transientStorePoolSize" in findings(transientStorePoolEnable="true")
    assert not findings(transientStorePoolEnable="true", transientStorePoolSize="1")
    found = findings(transientStorePoolEnable="true", flushDiskType="SYNC_FLUSH")
    assert list(found) == ["transientStorePoolEnable"]


def test_clients_are_sent_to_an_address_where_the_broker_listens() -> None:
    assert "brokerIP1" in findings(bindAddress="10.0.0.7")
    assert not findings(bindAddress="10.0.0.5")
    assert not findings(bindAddress="127.0.0.1", brokerIP1="127.0.0.1")


def test_name_servers_of_the_option_stand_for_those_of_the_file() -> None:
    found, _ = check_settings({"brokerIP1": "10.0.0.5"}, name_servers="a:1", is_own=lambda _: True)
    assert [finding.check for finding in found if finding.severity] == []


def test_settings_of_a_store_that_cannot_be_made_are_none() -> None:
    found, store = check_settings({"flushDiskType": "SOMETIMES"}, is_own=lambda _: True)
    assert store is None
    assert any(finding.severity is Severity.ERROR for finding in found)
