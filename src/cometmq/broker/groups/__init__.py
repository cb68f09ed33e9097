"""Keep groups: their members, the offsets they have reached, the queues their members lock."""
