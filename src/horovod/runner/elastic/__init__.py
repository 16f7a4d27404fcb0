"""Elastic jobs: discovery of available hosts, and the state machine that decides which workers are members."""
