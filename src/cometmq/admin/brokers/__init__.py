"""Administer brokers: configuration, reports, settings."""
