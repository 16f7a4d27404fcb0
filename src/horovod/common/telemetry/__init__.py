"""Observation of a job while it runs, hangs or ends: messages between its ranks, and reports for the user."""
