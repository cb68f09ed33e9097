"""Boxes for stores, as the tests of the store have them."""

from tests.unit.store.conftest import box, make_box

__all__ = ["box", "make_box"]
