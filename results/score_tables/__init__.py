"""Score tables: lines and cells, columns, notes, costs, and how they are rendered."""
