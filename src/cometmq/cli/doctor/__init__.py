"""Check a cluster: `cometmq doctor` and `cometmq probe`."""
