from .pipeline import Config, Report, run

__all__ = [
    "Config",
    "Report",
    "run",
]
