"""The differentiable neural computer (DNC): an LSTM with an external memory. Graves et al., Nature 538 (2016)."""
