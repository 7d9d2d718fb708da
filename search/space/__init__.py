"""Search spaces: grids, unions, parameters, and the space of a search."""
