"""Fixtures that make a scenario of `tests/integration` run against the Java servers.

A module of this directory imports the scenarios and then these fixtures, which take the place of
those that start our own servers. So each scenario is written once and runs for both faces of the
client and both brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.conftest import Namesrv

# A group may have 120 characters, and tests add some.
LONGEST_NAME: Final = 100
MARKS = [pytest.mark.interop, pytest.mark.timeout(900)]


@pytest.fixture
def namesrv(java_servers: Namesrv) -> str:
    return java_servers


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic and group name of this test's own among all that share the Java broker."""
    module = request.node.path.stem.removeprefix("test_").removesuffix("_on_java")
    whole = "".join(c if c.isalnum() else "-" for c in f"{module}-{request.node.name}")
    if len(whole) <= LONGEST_NAME:
        return whole
    return f"{whole[: LONGEST_NAME - 9]}-{crc32(whole.encode()):08x}"


@pytest.fixture
def resolved() -> Callable[[], bool]:
    """A Java broker does not say which transactions it asks for."""
    return lambda: True


@pytest.fixture
def keeps_place() -> bool:
    """A Java broker did so up to 5.3."""
    return False


@pytest.fixture
def keeps_notes() -> bool:
    """A Java broker gives a message back as it was; only a member that sends the retry itself can note the cause."""
    return False


@pytest.fixture
def commits_once() -> bool:
    """A Java broker that asks again before it has the answer commits a message twice."""
    return False


@pytest.fixture
def new_groups_choose() -> bool:
    """A Java broker has them begin at 0 as long as it finds the first message in memory."""
    return False
