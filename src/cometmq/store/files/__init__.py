"""The disk, and on it files of fixed sizes that are mapped: the only place that opens, maps and syncs."""
