"""Versions are named as Java's MQVersion names them."""

from __future__ import annotations

import pytest

from cometmq.protocol.codes import MQVersion, version_name


@pytest.mark.parametrize("version", [v for v in MQVersion if v >= MQVersion.V4_9_4])
def test_a_version_that_java_names_has_that_name(version: MQVersion) -> None:
    assert version_name(version) == version.name


@pytest.mark.parametrize(
    ("version", "name"),
    [(212, "V4_0_0_SNAPSHOT"), (213, "V4_0_0"), (478, "V5_3_3_SNAPSHOT"), (121, "121"), (-1, "-1")],
)
def test_snapshots_and_releases_take_turns(version: int, name: str) -> None:
    assert version_name(version) == name


def test_a_number_that_no_release_has_stays_a_number() -> None:
    assert version_name(10**9) == str(10**9)
