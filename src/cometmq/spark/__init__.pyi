from .temporary_views import views

__all__ = [
    "views",
]
