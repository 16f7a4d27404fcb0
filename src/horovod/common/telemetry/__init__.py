"""Observation of a job while it runs, hangs or ends: messages between its ranks, and the reports made of them."""
