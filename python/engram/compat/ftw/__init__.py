"""The datasets of FTW (For The Win, a population-based agent) on Engram's engine, with FTW's module paths."""
