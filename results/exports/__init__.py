"""Records for other programs: frames, written in pieces."""
