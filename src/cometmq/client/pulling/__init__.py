"""Pulls one queue: decodes answers, holds messages until they are consumed, finds damaged ones."""
