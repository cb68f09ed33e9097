"""Benchmarks: our broker and the Java one under the same load, in the same run."""
