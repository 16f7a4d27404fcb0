"""One job, from its agents to its end."""
