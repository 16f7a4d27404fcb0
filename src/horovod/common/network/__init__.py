"""Network interfaces, addresses and sockets of a host."""
