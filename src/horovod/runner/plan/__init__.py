"""Plan of a job: which workers run on which hosts, with which environment. Its modules perform no I/O."""
