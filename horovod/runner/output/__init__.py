"""What the workers print, and where it goes."""
