"""Message traces: their text, the hooks that write them, and the task that sends them."""
