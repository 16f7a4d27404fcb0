"""Messages between the launcher and its agents, and their encoding."""
