"""The measured processes: one module per engine, each of which calls `common.run_task`."""
