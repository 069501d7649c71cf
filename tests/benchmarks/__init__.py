"""The benchmarks: that they measure what they say, and that the page says what they measured."""
