"""Measure lag, durations and sizes by histograms, and work by units."""
