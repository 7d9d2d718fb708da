"""Documents: YAML text, nodes with places, type hints, built-in names, content keys, JSON schemas."""
