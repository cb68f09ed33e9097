"""Reading ranges of queues and sending in bulk: what Spark and the pipelines need of a client.

A `range_reader.RangeReader` answers questions about queues and reads them by many pulls at a time
(`range_pulls`). A `producer.BulkProducer` sends parcels of encoded messages (`sending`).
"""
