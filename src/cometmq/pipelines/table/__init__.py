"""Stream topics into tables as a service, which restarts its driver and keeps a target freshness.

`pipeline` runs the driver, and `supervisor` keeps a driver running. `__init__.pyi` lists the names of this
package. Each is imported at its first use, because the supervisor needs no Spark.
"""

from cometmq import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
