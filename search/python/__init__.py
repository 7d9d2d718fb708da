"""Functions for scripts and notebooks, which the root of the package offers under short names."""
