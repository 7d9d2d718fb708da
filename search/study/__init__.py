"""Studies: the spec, its goals, budgets and filters, and how its trials are read."""
