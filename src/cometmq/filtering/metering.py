"""The properties of one message, and the account of what it costs to evaluate expressions on them."""

from __future__ import annotations

from typing import Final

from cometmq.model.work import WorkBudget

# In units of WorkBudget. The worst that a character costs in a search, measured with texts made to
# be slow; a term of an expression at its worst is the reading of a long number.
_SEARCHED_CHARACTER_COST: Final = 6
TERM_COST: Final = 500
_PROPERTY_COST: Final = 250
_PROPERTIES_COST: Final = 1_000
# Up to this product of lengths a search costs too little to be worth the precaution.
_DIRECT_SEARCH_PRODUCT: Final = 100_000
_LINEAR_SEARCH_LENGTH: Final = 30_000
# The same for the charge: a term's own cost covers the search of a text that short.
_FREE_SEARCH_LENGTH: Final = 64


class MeteredProperties(dict[str, str]):
    """Properties whose evaluation is charged to `budget`.

    An evaluation that raises OutOfWorkError can be begun again with the same object when the budget
    has been filled up: the searches that were done are not done again, so it comes to its end.
    """

    __slots__ = ("_found", "budget")

    def __init__(self, properties: dict[str, str], budget: WorkBudget) -> None:
        super().__init__(properties)
        self.budget = budget
        self._found: dict[tuple[str, str], bool] = {}

    def contains(self, text: str, searched: str) -> bool:
        """Whether the value `text` has `searched` in it. Raises OutOfWorkError."""
        if len(text) <= _FREE_SEARCH_LENGTH:
            return searched in text
        key = text, searched
        found = self._found.get(key)
        if found is None:
            self.budget.charge(len(text) * _SEARCHED_CHARACTER_COST)
            found = self._found[key] = contains(text, searched)
        return found


def contains(text: str, searched: str) -> bool:
    """`searched in text`, in time that grows with the sum of their lengths.

    In shorter texts Python looks for short texts by a method that can take the product: 1.3 ms for 98
    characters in 29,000. From 30,000 characters on it uses one that cannot (bpo-41972), so a text
    made slow is lengthened; nothing can be found that ends in the lengthening.
    """
    if len(text) * len(searched) > _DIRECT_SEARCH_PRODUCT and len(text) < _LINEAR_SEARCH_LENGTH:
        text = text.ljust(_LINEAR_SEARCH_LENGTH, "\x01" if searched[-1] == "\x02" else "\x02")
    return searched in text


def decoding_cost(text: str) -> int:
    """What it costs to decode a properties string."""
    return _PROPERTIES_COST + len(text) + _PROPERTY_COST * text.count("\x02")
