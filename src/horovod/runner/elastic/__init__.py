"""Elastic jobs: discovery of available hosts, and decisions which workers are members of the job."""
