"""The FTW agent: actor, learner, and what creates their adders, datasets and tables."""
