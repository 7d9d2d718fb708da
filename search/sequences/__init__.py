"""Sequences for training and evaluation: drawn ahead of use by processes that import no more than synth and numpy."""
