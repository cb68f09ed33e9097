"""Consume queues and index files of a store, made anew from its commit log, in parallel.

`pipeline` is the whole; its names stand in `__init__.pyi` and are imported when they are first used:
Spark's workers need single modules only.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
