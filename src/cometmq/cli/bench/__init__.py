"""Measure a cluster: `cometmq bench`."""
