"""Agent of the launcher on each host, which starts, watches and ends the workers of this host."""
