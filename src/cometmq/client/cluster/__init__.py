"""Holds what a client knows of its cluster, its calls to servers, and its answers to brokers."""
