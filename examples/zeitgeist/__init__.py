"""Zeitgeist, the pipeline that the paper explains MillWheel with (2, Fig. 1, 3 and 9)."""
