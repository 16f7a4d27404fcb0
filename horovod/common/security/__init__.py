"""Who may talk to whom, and what others can read of it."""
