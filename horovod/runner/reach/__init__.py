"""Getting to the hosts: agents as children, by ssh, or through another agent."""
