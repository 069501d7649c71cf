"""What runs where the keys live (paper 6): the step, and the envelopes that carry records to it."""
