"""RocketMQ as Spark sees it: the source `rocketmq` reads live brokers, `rocketmq-store` the files of
a store. Everything here needs the extra `spark`, but for `java`, which tells whether Spark can run.

`record_batches` turns bytes of the log into Arrow record batches, columns at a time, for both:
`arrow_slices` cuts pieces out of a window, `record_texts` takes topics and properties apart,
`schema` says what the columns are called. `options`, `pushdown`, `splitting` and `gaps` are common
to both too.

Live brokers: `live_options`, `live_plan` (driver), `live_reading` (workers), `live_source` and
`live_stream` (what Spark calls). Files: `store_files`, `store_plan`, `store_reading`, `store_source`.
"""
