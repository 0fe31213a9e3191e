"""What runs in the measured processes: one module per engine, each speaks `common.serve`."""
