"""Declare what servers count and limit, and write it in the text format of Prometheus."""
