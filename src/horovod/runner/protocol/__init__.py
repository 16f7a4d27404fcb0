"""Protocol between launcher and agent."""
