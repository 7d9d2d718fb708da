"""Trained models: kept in folders, loaded, exported."""
