"""RocketMQ as Spark sees it: the source `rocketmq` reads live brokers, `rocketmq-store` the files of
a store.

`record_batches` turns bytes of the log into Arrow record batches, columns at a time, for both:
`arrow_slices` cuts pieces out of a window, `record_texts` takes topics and properties apart,
`schema` says what the columns are called. Everything here needs the extra `spark`.
"""
