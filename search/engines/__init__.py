"""Engines: plans of studies, the driver that keeps every record, the inline engine and Ray."""
