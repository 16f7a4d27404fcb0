"""Interfaces, addresses and sockets of a host."""
