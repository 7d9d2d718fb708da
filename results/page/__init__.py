"""The offline page: figures, heat map, sections, captions."""
