"""Run several processes as one: start them, start again those that die, stop them, join their logs.

The supervisor imports neither asyncio nor structlog nor any part of a server, so it needs 14 MiB
of memory (docs/internals/composition.md).
"""
