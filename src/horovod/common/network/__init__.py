"""Network interfaces, addresses and sockets of this host."""
