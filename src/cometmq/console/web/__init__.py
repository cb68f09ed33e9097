"""Serve the console over HTTP: connections, https, and the checks before every page."""
