"""Administer users, policies and accounts."""
