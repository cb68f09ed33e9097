from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import IllegalArgumentError, ProtocolError
from cometmq.protocol.messages.ids import (
    UniqueIdGenerator,
    encode_offset_id,
    pack_host,
    parse_offset_id,
    parse_unique_id,
    unpack_host,
)
from cometmq.runtime.randomness import Randomness

hosts = st.ip_addresses().map(str)
V4 = bytes([10, 0, 0, 1])
V6 = socket.inet_pton(socket.AF_INET6, "fe80::1")


@given(hosts, st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_an_offset_id_comes_back(host: str, port: int, offset: int) -> None:
    packed = pack_host(host, port)
    offset_id = encode_offset_id(packed, offset)
    assert len(offset_id) == (56 if ":" in host else 32)
    parsed = parse_offset_id(offset_id)
    # The texts of one IPv6 address may differ, so the packed forms are compared.
    assert pack_host(parsed.host, parsed.port) == packed
    assert parsed[1:] == (port, offset)
    assert unpack_host(packed) == f"{parsed.host}:{port}"


def test_known_offset_id() -> None:
    assert encode_offset_id(pack_host("192.168.0.1", 10911), 255) == (
        "C0A8000100002A9F00000000000000FF"
    )


@pytest.mark.parametrize("host", ["localhost", "10.0.0", "fe80::zz", "", "fe80::1%eth0"])
def test_a_host_name_has_no_packed_form(host: str) -> None:
    with pytest.raises(IllegalArgumentError, match="no IP address"):
        pack_host(host, 1)


@pytest.mark.parametrize(
    "text",
    ["", "0A", "xy" * 16, "0A" * 17, " A" * 16, "0A 0B" + "00" * 14, "ÄÖ" * 16, "0" * 33],
)
def test_other_texts_are_no_ids(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_offset_id(text)
    with pytest.raises(ProtocolError):
        parse_unique_id(text)


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_a_protocol_error(text: str) -> None:
    for parse in (parse_offset_id, parse_unique_id):
        try:
            parse(text)
        except ProtocolError:
            continue


def new_generator(
    address: bytes,
    now_ms: Callable[[], int] = lambda: 1_700_000_000_000,
    *,
    process_id: int | None = None,
    seed: int = 1,
) -> UniqueIdGenerator:
    randbytes = Randomness(seed).randbytes
    return UniqueIdGenerator(address, process_id, now_ms=now_ms, randbytes=randbytes)


@pytest.mark.parametrize("address", [V4, V6])
def test_a_unique_id_tells_its_maker(address: bytes) -> None:
    unique_id = new_generator(address, process_id=0x1_2345).next()
    assert len(unique_id) == (32 if address is V4 else 56)
    assert unique_id == unique_id.upper()
    parts = parse_unique_id(unique_id)
    assert parts.address == ("10.0.0.1" if address is V4 else "fe80::1")
    assert parts.process_id == 0x2345


def test_the_same_seed_and_time_give_the_same_ids() -> None:
    first, again, other = (new_generator(V4, seed=seed) for seed in (1, 1, 2))
    assert [first.next() for _ in range(3)] == [again.next() for _ in range(3)]
    assert first.next() != other.next()


def test_the_counter_wraps_and_ids_stay_distinct() -> None:
    generator = new_generator(V4)
    ids = [generator.next() for _ in range(65536)]
    assert len(set(ids)) == 65536
    assert {len(unique_id) for unique_id in ids} == {32}
    counters = [parse_unique_id(unique_id).counter for unique_id in ids]
    assert counters == [(counters[0] + i) & 0xFFFF for i in range(65536)]


def local_s(*date: int) -> float:
    return time.mktime((*date, *([0] * (8 - len(date))), -1))  # type: ignore[arg-type]  # a tuple of the length that mktime wants


@pytest.mark.parametrize("zone", ["UTC", "CET-1CEST,M3.5.0,M10.5.0/3", "XYZ+9"])
def test_time_counts_from_the_month_s_first_in_local_time(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        now = local_s(2024, 12, 31, 23, 59, 59)
        generator = new_generator(V4, lambda: int(now * 1000))
        last = parse_unique_id(generator.next())
        assert last.elapsed_ms == (31 * 86400 - 1) * 1000
        now += 1.25
        assert parse_unique_id(generator.next()).elapsed_ms == 250
        # A month in which the clock is put forward: its days have 24 hours but for one.
        now = local_s(2025, 3, 31, 12)
        summer = 3600 if "CEST" in zone else 0
        assert parse_unique_id(generator.next()).elapsed_ms == (30.5 * 86400 - summer) * 1000
    finally:
        monkeypatch.undo()
        time.tzset()
