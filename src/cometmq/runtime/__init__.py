"""What every process needs whatever it serves: tasks, clock, configuration, signals, logs."""
