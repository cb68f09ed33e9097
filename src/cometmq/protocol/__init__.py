"""Encode and decode what RocketMQ sends and stores, without I/O: frames, commands, requests, messages."""
