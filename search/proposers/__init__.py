"""Searches: points proposed through Optuna, their journal, the results of a search."""
