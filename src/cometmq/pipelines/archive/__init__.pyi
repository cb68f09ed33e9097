from .pipeline import Config, Report, read, run

__all__ = [
    "Config",
    "Report",
    "read",
    "run",
]
