"""Explain why a group is behind: the facts of brokers and members, and the causes that follow."""
