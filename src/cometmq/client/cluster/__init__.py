"""What a client knows of its cluster, asks of it and answers to it."""
