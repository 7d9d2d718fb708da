"""Timing of the implementations of an op side by side, and how closely they must agree."""
