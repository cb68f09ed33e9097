"""Provide what every process needs: tasks, clock, configuration, signals, logs, state files."""
