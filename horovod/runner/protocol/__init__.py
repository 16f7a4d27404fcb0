"""What launcher and agent say to each other."""
