"""Agent: the process on each host that starts, watches and ends the host's workers."""
