"""Define what programs report to people: findings of checks, and sentences that can be translated."""
