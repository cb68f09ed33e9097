from .pipeline import run
from .settings import Config

__all__ = [
    "Config",
    "run",
]
