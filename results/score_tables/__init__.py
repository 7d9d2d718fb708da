"""Score tables: lines and cells, columns, notes, costs, and their rendering."""
