"""The worker (6): the step, and the envelopes that carry records to it."""
