"""Run bulk work on Spark: `cometmq pipeline`."""
