"""Benchmarks: reading a run, training a model, the loop of farm and trainer."""
