"""Looking at a pipeline: status, metrics, one key, and a page. It reads the store, and changes nothing."""
