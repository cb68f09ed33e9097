"""Give messages again that a consumer could not handle, and dead letters once more."""
