"""Carry commands over connections: one connection type, a server, and a client with a pool."""
