"""`horovodrun --doctor`: looks at hosts and what lies between them."""
