"""Job planning, which decides where each worker runs and with which environment. These modules perform no I/O."""
