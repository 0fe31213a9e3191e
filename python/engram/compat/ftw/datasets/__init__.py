"""Datasets for FTW's learners."""
