"""Report a broker's figures to monitoring systems; see docs/internals/metrics.md."""
