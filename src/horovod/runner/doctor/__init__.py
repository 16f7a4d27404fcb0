"""`horovodrun --doctor`: checks of hosts and of the network between them."""
