"""Take orders by HTTP and charge for them: a complete service. README.md explains it."""
