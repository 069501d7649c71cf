"""What is done to a store as a whole: check, copy, forget. Used by the command line, never by a step."""
