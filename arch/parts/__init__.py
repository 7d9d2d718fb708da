"""Pieces that several mixers share. A part knows no mixer."""
