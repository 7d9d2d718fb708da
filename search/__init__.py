"""The roof: ask, answer, keep."""
