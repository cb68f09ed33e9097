"""Keep the table of topics and the journal of its changes, and limit how fast it grows."""
