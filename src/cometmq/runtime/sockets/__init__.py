"""Make connections and listeners, and read addresses."""
