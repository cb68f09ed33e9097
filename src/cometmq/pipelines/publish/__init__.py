"""Publish an archive that exists as Iceberg and Delta tables.

`pipeline` is the door. `__init__.pyi` lists the names of this package, and each is imported at its
first use, because Spark's workers need single modules only.
"""

from cometmq import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
