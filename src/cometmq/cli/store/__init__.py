"""Inspect and repair a store of a broker that is down: `cometmq store`."""
