"""Answer questions about a cluster: `cometmq explain`."""
