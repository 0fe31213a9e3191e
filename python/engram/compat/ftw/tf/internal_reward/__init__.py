"""Internal rewards: weights of an environment's events."""
