"""The same jobs on other systems, each written and tuned the way its own experts would."""
