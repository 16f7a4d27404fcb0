"""Connections from the launcher to the agents on hosts, as child processes, over ssh, or through another agent."""
