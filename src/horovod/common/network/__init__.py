"""Functions for this host's network interfaces, addresses and sockets."""
