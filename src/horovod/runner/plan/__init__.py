"""Job planning: the host and the environment of each worker. These modules perform no I/O."""
