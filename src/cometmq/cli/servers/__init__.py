"""Start servers: `cometmq broker`, `cometmq namesrv`, `cometmq console`."""
