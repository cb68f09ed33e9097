"""Hide half messages until their producers commit them, and ask about those left open."""
