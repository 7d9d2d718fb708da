"""Engines: what a study would train, the driver that keeps every record, inline and Ray."""
