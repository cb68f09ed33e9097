"""Look into a store that no broker has open, check it, count it, and repair it."""
