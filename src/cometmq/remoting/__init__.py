"""Commands over TCP: one connection type for both sides, a server, and a client with a pool."""
