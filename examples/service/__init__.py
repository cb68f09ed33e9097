"""Takes orders by HTTP and charges for them: a service as one ships it. README.md explains it."""
