"""Find the ranges of offsets that a read covers: by options, by filters, and divided among tasks."""
