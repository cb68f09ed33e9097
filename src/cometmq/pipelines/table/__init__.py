"""Stream topics into tables as a service: restarted, measured, and within a target freshness.

`pipeline` runs the driver, `supervisor` keeps a driver running. `__init__.pyi` lists the names of this
package, and each is imported at its first use, because the supervisor needs no Spark.
"""

from cometmq import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
