"""What launcher and workers share; the launcher may import it."""
