"""The one place that knows Spark: the session, and the jobs that carry epochs."""
