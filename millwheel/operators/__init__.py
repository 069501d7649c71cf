"""Operators: windows, joins, filters and aggregates, written in terms of the model."""
