"""A worked example of each pipeline: `python -m examples.pipelines.archive` and so on.

Each starts a cluster of its own (`orders`), sends the order events and runs its pipeline over them,
as `cometmq pipeline` would. They need the extra `spark`.
"""
