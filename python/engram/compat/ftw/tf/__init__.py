"""FTW's networks, hyperparameters and internal rewards, in JAX under FTW's module paths."""
