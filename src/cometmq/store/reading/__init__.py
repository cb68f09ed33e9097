"""Provide what readers of a store need that may not write to it, as light as can be.

Spark's workers import this package for each task, and the offline tools and the store itself use
it, too. So nothing here imports the rest of `store`, or anything that costs much beside numpy.
"""
