"""Studies: the spec, its goals, budgets and filters, and the reading of its trials."""
