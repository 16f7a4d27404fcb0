"""Observation of a job's ranks: messages between them, and reports for the user when a job runs, hangs or ends."""
