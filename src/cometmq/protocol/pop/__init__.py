"""Encode and decode what requests to pop messages carry."""
