"""What replay and redrive share: messages sent again, each once, at a rate, wherever it was killed."""
