"""FTW's losses: sums over time and batch, without means, of the rows that a mask marks as valid.

Arrays are time-major. T is the number of transitions of an item; its T + 1 rows have the last observation, too. See
`masks` for what is valid.
"""
