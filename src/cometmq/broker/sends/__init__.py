"""Take messages in: sends, first sends to a topic, and replies."""
