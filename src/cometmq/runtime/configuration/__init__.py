"""Read and check configuration files: RocketMQ's keys, in properties files."""
