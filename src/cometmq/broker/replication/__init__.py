"""The broker's part in replication: what a slave serves and what it copies from its master."""
