from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.golden import Golden, of_kind

from cometmq.errors import IllegalArgumentError
from cometmq.filtering.bloom import BloomFilter


@pytest.mark.parametrize("golden", of_kind("bloom"), ids=str)
def test_the_bits_of_java(golden: Golden) -> None:
    wanted = golden.input
    bloom = BloomFilter.create(wanted["errorRate"], wanted["expected"])
    assert (bloom.bit_count, bloom.position_count) == (wanted["bits"], wanted["hashes"])
    for one in wanted["texts"]:
        assert list(bloom.positions(one["text"])) == one["positions"]
        assert bloom.hits(golden.data, one["positions"])
    assert bloom.bit_map([one["positions"] for one in wanted["texts"]]) == golden.data


def test_the_defaults_of_a_broker() -> None:
    assert BloomFilter.create(20, 32) == BloomFilter(bit_count=112, position_count=3)


@given(st.lists(st.text(max_size=40), max_size=20))
def test_what_was_set_hits(texts: list[str]) -> None:
    bloom = BloomFilter.create(20, 32)
    bit_map = bloom.bit_map([bloom.positions(text) for text in texts])
    assert len(bit_map) == 14
    assert all(bloom.hits(bit_map, bloom.positions(text)) for text in texts)


def test_what_was_not_set_mostly_misses() -> None:
    bloom = BloomFilter.create(20, 32)
    bit_map = bloom.bit_map([bloom.positions(f"group-{n}#topic") for n in range(32)])
    false_hits = sum(bloom.hits(bit_map, bloom.positions(f"other-{n}#topic")) for n in range(1000))
    assert 100 < false_hits < 350


@pytest.mark.parametrize(("rate", "count"), [(0, 32), (100, 32), (-1, 32), (20, 0)])
def test_parameters_that_make_no_filter(rate: int, count: int) -> None:
    with pytest.raises(IllegalArgumentError, match=r"BloomFilter=|UseFilter="):
        BloomFilter.create(rate, count)
