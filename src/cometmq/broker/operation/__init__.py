"""What operators need: configuration, inspection, run-time figures, registration."""
