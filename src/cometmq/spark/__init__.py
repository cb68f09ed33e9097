"""RocketMQ as Spark sees it: `rocketmq` reads live brokers and writes to them, `rocketmq-store` reads the
files of a store. Everything here needs the extra `spark`, but for `java`, which tells whether Spark can run.

`record_batches` turns bytes of the log into Arrow record batches, columns at a time, for both:
`arrow_slices` cuts pieces out of a window, `record_texts` takes topics and properties apart,
`schema` says what the columns are called. `options`, `pushdown`, `splitting` and `gaps` are common
to both too.

Live brokers: `live_options`, `live_plan` (driver), `live_reading` (workers), `live_source` and
`live_stream` (what Spark calls).

The sink: `sink_options`, `sink_columns` (rows to messages), `sink_packing` (messages to requests),
`sink_tasks` (workers), `sink_writer` (what Spark calls); of exactly-once `outbox` (its files) and
`outbox_sending` (driver).

Files: `cometmq.store.reading`, `store_plan`, `store_reading`, `store_source`.
"""
