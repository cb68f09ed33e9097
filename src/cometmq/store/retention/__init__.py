"""Decide which files retention no longer keeps, and delete them."""
