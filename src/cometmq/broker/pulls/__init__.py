"""Hand messages out, and hold pulls until there is a message."""
