"""Zeitgeist: finds anomalies of keys in streams, online (paper 2, Fig. 1)."""
