"""Tiles in Triton that several ops share: scans, matrices of tokens, small matrices packed into one tile."""
