"""Training: cohorts of trials of equal shape, from packing to records."""
