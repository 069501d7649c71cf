"""Zeitgeist: anomalies in streams of (time, key[, value]), found per key, online (paper 2, Fig. 1)."""
