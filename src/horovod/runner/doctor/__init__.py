"""Checks of hosts and of the network between them, for `horovodrun --doctor`."""
