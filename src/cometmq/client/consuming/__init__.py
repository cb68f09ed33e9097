"""Hold push and lite pull consumers, the group members behind them, and the calls of listeners."""
