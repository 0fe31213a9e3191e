"""FTW's adders, under FTW's module paths."""
