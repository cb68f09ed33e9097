"""Run a whole cluster in one process: `cometmq dev`."""
