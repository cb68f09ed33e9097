"""Turn records of the log into rows and Arrow columns."""
