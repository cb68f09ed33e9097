"""Push and lite pull consumers: the members behind them, and the calls of listeners."""
