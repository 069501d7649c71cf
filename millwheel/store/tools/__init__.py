"""Tools for whole stores: check, copy, forget. Used by the command line only."""
