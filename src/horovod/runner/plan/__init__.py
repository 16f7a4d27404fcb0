"""Plan of a job: which workers run on which hosts, and with which environment. The modules perform no I/O."""
