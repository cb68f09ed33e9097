"""Choose a slave's master from the addresses that name servers report."""

from __future__ import annotations

import pytest

from cometmq.broker.replication.known_master import KnownMaster
from cometmq.errors import ConfigError

A, A_HA = "10.0.0.1:10911", "10.0.0.1:10912"
B, B_HA = "10.0.0.2:10911", "10.0.0.2:10912"


def test_a_name_server_tells_both_addresses() -> None:
    master, changes = KnownMaster(), []
    master.on_change.append(lambda: changes.append((master.address, master.ha_address)))
    assert (master.address, master.ha_address, master.candidates()) == (None, None, [])
    master.reported("ns1", A, A_HA)
    master.reported("ns2", A, A_HA)
    assert changes == [(A, A_HA)]
    assert master.candidates() == [A]


def test_a_name_server_that_has_just_started_takes_nothing_back() -> None:
    master = KnownMaster()
    master.reported("ns1", A, A_HA)
    master.reported("ns1", None, None)
    assert (master.address, master.ha_address) == (A, A_HA)
    master.reported("ns1", B, B_HA)
    assert (master.address, master.ha_address) == (B, B_HA)


def test_of_two_masters_the_slave_stays_with_its_own_while_one_server_tells_it() -> None:
    master = KnownMaster()
    master.reported("ns1", A, A_HA)
    master.reported("ns2", A, A_HA)
    master.reported("ns2", B, B_HA)
    assert master.address == A
    master.reported("ns1", B, B_HA)
    assert (master.address, master.ha_address) == (B, B_HA)
    # The former one, told again by a server that lags behind, is another change of mind.
    master.reported("ns1", A, A_HA)
    assert master.address == B


def test_a_name_server_that_is_gone_no_longer_counts() -> None:
    master = KnownMaster()
    master.reported("ns1", A, A_HA)
    master.reported("ns2", A, A_HA)
    master.reported("ns1", None, None)  # as a registration says that fails
    master.reported("ns2", B, B_HA)
    assert master.address == B


def test_the_operators_address_stands_for_the_log_only() -> None:
    master = KnownMaster(B_HA)
    assert (master.address, master.ha_address, master.candidates()) == (B, B_HA, [B])
    is_reported = [master.is_reported]
    master.reported("ns1", A, A_HA)
    assert [*is_reported, master.is_reported] == [False, True]
    assert (master.address, master.ha_address) == (A, B_HA)
    assert master.candidates() == [B, A], "the one that sends the log is asked first"


def test_an_ipv6_address_keeps_its_brackets() -> None:
    assert KnownMaster("[fd00::1]:10912").candidates() == ["[fd00::1]:10911"]


@pytest.mark.parametrize("text", ["nowhere", "host:", ":10912", "host:99999"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"haMasterAddress=.* must be of the form"):
        KnownMaster(text)
