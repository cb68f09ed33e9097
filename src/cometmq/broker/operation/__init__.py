"""Serve operators: configuration, inspection, run-time figures, registration."""
