"""Make RocketMQ a source and a sink of Spark. `rocketmq` reads from live brokers and writes to
them, `rocketmq-store` reads the files of a store. Everything here needs the extra `spark`, except
`java`, which says whether Spark can run.

Both sources use `record_batches`, which turns bytes of the log into Arrow record batches, a column
at a time: `arrow_slices` cuts pieces out of a window, `text_columns` makes columns of topics and
properties, `schema` names the columns. Both also use `options`, `pushdown`, `splitting` and `gaps`.

Live brokers: `live_options`, `live_plan` (driver), `live_reading` (workers), `live_source` and
`live_stream` (what Spark calls).

The sink: `sink_options`, `sink_columns` (rows to messages), `sink_packing` (messages to requests),
`sink_tasks` (workers), `sink_writer` (what Spark calls); for exactly-once delivery also `outbox`
(its files) and `outbox_sending` (driver).

Files: `cometmq.store.reading`, `store_plan`, `store_reading`, `store_source`.
"""
