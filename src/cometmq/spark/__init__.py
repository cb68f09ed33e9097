"""Make RocketMQ a source and a sink of Spark. `rocketmq` reads from live brokers and writes to
them, `rocketmq-store` reads the files of a store. Everything here needs the extra `spark`, except
`java`, which says whether Spark can run.

Both sources use `rows`, which turns bytes of the log into rows and Arrow record batches, a column at
a time, and `options`, `pushdown`, `splitting` and `gaps`. `live` reads from brokers, `stores` reads
files (with `cometmq.store.reading`; `jvm` does so inside of Spark's own process), `sink` sends rows.
In each package Spark calls `source` or `writer`, `plan` and `options` run on the driver, and
`reading` or `tasks` on workers.
"""

from cometmq import _lazy

# Imported at first use, because Spark's workers need single modules only.
__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
