"""FTW's networks. As in Sonnet, they make their weights when the sizes of their inputs are known."""
