"""Run the producers and consumers for callers without a loop: blocking classes over one loop thread."""
