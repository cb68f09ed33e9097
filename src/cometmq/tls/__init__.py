"""Serve and use TLS: settings, certificates, handshakes, records."""
