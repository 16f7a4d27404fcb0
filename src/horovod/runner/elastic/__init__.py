"""Elastic jobs: discovery of available hosts, and selection of the workers that are members of the job."""
