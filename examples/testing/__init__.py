"""A service and its tests, as docs/testing.md explains them."""
