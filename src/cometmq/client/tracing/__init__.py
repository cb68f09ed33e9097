"""Write message traces: their text, the hooks that make them, and the task that sends them."""
