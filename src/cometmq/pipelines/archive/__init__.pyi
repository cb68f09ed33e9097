from .pipeline import Report, read, run
from .settings import Config

__all__ = [
    "Config",
    "Report",
    "read",
    "run",
]
