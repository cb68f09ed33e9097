"""Pull one queue: decode answers, hold messages until they are consumed, find damaged ones."""
