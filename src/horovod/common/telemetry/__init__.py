"""Telemetry of a job: messages between ranks, step statistics, hang diagnosis, timelines and warnings."""
