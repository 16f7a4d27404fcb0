"""Checks of the hosts and of the network between them, for `horovodrun --doctor`."""
