"""Connections to hosts: agents run as children, over ssh, or through another agent."""
