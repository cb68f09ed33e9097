"""Nobody takes all of the few places that there are."""

from __future__ import annotations

import pytest

from cometmq.console.limits import LimitMetError
from cometmq.console.views.sayings import told_in
from cometmq.console.web.places import Places


def test_one_account_leaves_half_of_the_places_to_others() -> None:
    """A reader who kept four slow downloads of reports kept everybody else from reading any."""
    places = Places()
    for _ in range(2):
        places.check("eve", "0 exports are under way", "MAX_EXPORTS", 4)
        places.take("eve")
    with pytest.raises(LimitMetError) as refused:
        places.check("eve", "2 exports are under way", "MAX_EXPORTS", 4)
    assert refused.value.detail == (
        "2 exports are under way, 2 of them by the account eve, the limit MAX_EXPORTS is 4; one "
        "account has half of them at most: wait until one of these has ended"
    )
    assert "eve" in (told := told_in("zh", refused.value.detail))
    assert "account" not in told
    for name in ("ada", "ben"):
        places.check(name, "", "MAX_EXPORTS", 4)
        places.take(name)
    with pytest.raises(LimitMetError, match="the limit MAX_EXPORTS is 4; try again"):
        places.check("zoe", "4 exports are under way", "MAX_EXPORTS", 4)
    places.give_back("eve")
    places.check("zoe", "", "MAX_EXPORTS", 4)


def test_a_single_place_is_for_whoever_comes_first() -> None:
    places = Places()
    places.check("eve", "", "MAX_EXPORTS", 1)
    with places.taken("eve"), pytest.raises(LimitMetError):
        places.check("eve", "1 exports are under way", "MAX_EXPORTS", 1)
    assert places.count == 0
