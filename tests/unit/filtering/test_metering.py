"""The metered cost of evaluating an expression, and how the evaluation stops when the budget is
spent.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.filtering.metering import MeteredProperties, contains
from cometmq.filtering.sql92 import compile_sql
from cometmq.model.measures.work import OutOfWorkError, WorkBudget

PLENTY = 1 << 60


@given(
    st.text("ab\x01\x02", max_size=8),
    st.integers(1, 40_000),
    st.text("ab\x01\x02", min_size=1, max_size=8),
    st.integers(1, 200),
    st.text("ab\x01\x02", max_size=3),
)
def test_a_lengthened_search_finds_what_is_there_and_nothing_else(
    unit: str, times: int, searched_unit: str, searched_times: int, tail: str
) -> None:
    text, searched = (unit * times)[:40_000], searched_unit * searched_times + tail
    assert contains(text, searched) is (searched in text)
    for end in ("\x01", "\x02"):
        assert contains(text, searched + end) is ((searched + end) in text)


def cost(expression: str, **values: str) -> int:
    budget = WorkBudget(PLENTY)
    compile_sql(expression)(MeteredProperties(values, budget))
    return PLENTY - budget.left


def test_the_cost_grows_with_the_text_and_with_the_searches_and_no_faster() -> None:
    one = cost("a CONTAINS 'x'", a="y" * 10_000)
    assert one < cost("a CONTAINS 'x'", a="y" * 20_000) < 2.1 * one
    both = cost("a CONTAINS 'x' OR a CONTAINS 'z'", a="y" * 10_000)
    assert one < both < 2.1 * one
    # A search that needs no text is not charged for one.
    assert cost("b CONTAINS 'x'", a="y" * 10_000) < one / 10
    assert cost("a IS NULL OR a CONTAINS 'x' OR b CONTAINS 'y'", b="y") < one / 10


def test_an_evaluation_that_ran_out_of_work_goes_on_where_it_was() -> None:
    searches = 100
    condition = compile_sql(
        " OR ".join(f"a CONTAINS 'x{number}'" for number in range(searches)) + " OR b = '1'"
    )
    budget = WorkBudget(0)
    properties = MeteredProperties({"a": "y" * 30_000, "b": "1"}, budget)
    runs = 0
    while True:
        budget.left = 1_000_000
        runs += 1
        try:
            selected = condition(properties)
        except OutOfWorkError:
            assert runs < searches
            continue
        break
    assert selected is True
    # Some six searches of 180,000 fit into a million.
    assert 10 < runs < 40


def test_plain_properties_are_not_charged() -> None:
    assert compile_sql("a CONTAINS 'x'")({"a": "y" * 30_000 + "x"}) is True


@pytest.mark.parametrize("digits", [19, 20, 4_300, 4_301, 16_000])
def test_integers_of_any_length_are_refused_as_expressions(digits: int) -> None:
    with pytest.raises(ValueError, match="is no int64"):
        compile_sql(f"a = {'9' * digits}")


@pytest.mark.parametrize("digits", [257, 4_300, 4_301, 32_000])
@pytest.mark.parametrize("literal", ["5", "5000000000", "5.5"])
def test_a_number_of_any_length_in_a_property_is_none(digits: int, literal: str) -> None:
    assert compile_sql(f"a > {literal}")({"a": "9" * digits}) is None
    assert compile_sql(f"a = {literal}")({"a": "9" * digits}) is None
