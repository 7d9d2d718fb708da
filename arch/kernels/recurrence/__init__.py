"""Pieces of recurrences over time: decay inside a chunk, cutting into chunks, a loop over tokens, triangular solves."""
