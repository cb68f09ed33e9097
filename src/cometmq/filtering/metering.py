"""Charge the evaluation of expressions on a message's properties to a budget of work."""

from __future__ import annotations

from typing import Final

from cometmq.model.measures.work import WorkBudget

# Costs are in units of WorkBudget. A character costs at most this in a search, measured with texts
# that were made to be slow. The most expensive term of an expression reads a long number.
_SEARCHED_CHARACTER_COST: Final = 6
TERM_COST: Final = 500
_PROPERTY_COST: Final = 250
_PROPERTIES_COST: Final = 1_000
# Up to this product of lengths a search is too cheap for the precaution that `contains` takes.
_DIRECT_SEARCH_PRODUCT: Final = 100_000
_LINEAR_SEARCH_LENGTH: Final = 30_000
# A search in a text no longer than this is not charged: the term's own cost covers it.
_FREE_SEARCH_LENGTH: Final = 64


class MeteredProperties(dict[str, str]):
    """Holds a message's properties, whose evaluation is charged to `budget`.

    After OutOfWorkError, refill the budget and evaluate the expression again with the same object.
    The object remembers the searches that were done, so the evaluation comes to its end. Set
    `goes_on` then: to charge for all terms again might leave no work for a search, in every turn.
    """

    __slots__ = ("_found", "budget", "goes_on")

    def __init__(self, properties: dict[str, str], budget: WorkBudget) -> None:
        super().__init__(properties)
        self.budget = budget
        self.goes_on = False
        self._found: dict[tuple[str, str], bool] = {}

    def contains(self, text: str, searched: str) -> bool:
        """Return whether the value `text` has `searched` in it. Raises OutOfWorkError."""
        if len(text) <= _FREE_SEARCH_LENGTH:
            return searched in text
        key = text, searched
        found = self._found.get(key)
        if found is None:
            self.budget.charge(len(text) * _SEARCHED_CHARACTER_COST)
            found = self._found[key] = contains(text, searched)
        return found


def contains(text: str, searched: str) -> bool:
    """Return `searched in text`, in time that grows with the sum of their lengths.

    In a text of less than 30,000 characters Python looks for a short text by a method whose time
    can grow with the product of the lengths: 1.3 ms for 98 characters in 29,000. In a longer text
    it uses a method without this fault (bpo-41972). So this function pads a text that may be slow
    to 30,000 characters. The padding makes no false match, because `searched` does not end in its
    character.
    """
    if len(text) * len(searched) > _DIRECT_SEARCH_PRODUCT and len(text) < _LINEAR_SEARCH_LENGTH:
        text = text.ljust(_LINEAR_SEARCH_LENGTH, "\x01" if searched[-1] == "\x02" else "\x02")
    return searched in text


def decoding_cost(text: str) -> int:
    """Return the cost of decoding a properties string, in units of WorkBudget."""
    return _PROPERTIES_COST + len(text) + _PROPERTY_COST * text.count("\x02")
