"""Check who calls and what the caller may do, by the users and policies that brokers keep."""
