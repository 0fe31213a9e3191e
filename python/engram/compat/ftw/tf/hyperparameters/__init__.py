"""Hyperparameters that population-based training changes."""
