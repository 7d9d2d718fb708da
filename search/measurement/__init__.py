"""Measurements without training: capacity of memories, latency of forward passes, benchmarks."""
