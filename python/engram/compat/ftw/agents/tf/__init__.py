"""FTW's agent, under FTW's module paths."""
