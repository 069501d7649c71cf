"""The only package that uses Spark: the session, and the jobs of epochs."""
