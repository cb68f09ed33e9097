"""Pop messages: take them from any queue for a time, and acknowledge each."""
