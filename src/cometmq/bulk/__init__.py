"""Read ranges of queues and send in bulk, for Spark and the pipelines.

A `range_reader.RangeReader` answers questions about queues and reads them by many pulls at a time
(`range_pulls`). A `producer.BulkProducer` sends parcels of encoded messages (`sending`).
"""
