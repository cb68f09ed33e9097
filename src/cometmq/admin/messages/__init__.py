"""Find messages, send them again, and list those that wait."""
