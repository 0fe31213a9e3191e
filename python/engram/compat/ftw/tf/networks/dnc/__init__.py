"""The differentiable neural computer (DNC): a recurrent core with a memory."""
