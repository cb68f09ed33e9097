"""The commit log: where records are written, and the ways to read them in their order."""
