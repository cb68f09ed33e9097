"""Call listeners: one message or a batch, in order or not; give back messages that were not consumed."""
