"""Elastic jobs: which workers are members (pure), and which hosts are available."""
