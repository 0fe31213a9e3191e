"""FTW's Python API on the engine of Engram, module by module as FTW has it."""
