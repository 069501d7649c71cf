"""Operators: windows, joins, filters and aggregates, built on the model."""
