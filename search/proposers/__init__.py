"""Proposers: Optuna's samplers behind one interface, their journal, what a search found."""
