"""Messages between the launcher and the agents, and their encoding."""
