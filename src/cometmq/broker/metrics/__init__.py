"""What a broker reports to monitoring systems; see docs/internals/metrics.md."""
