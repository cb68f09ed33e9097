"""Look after the store while the broker runs: flush, index, query, clean."""
