"""Pure planning of a job: which workers run where, with which environment."""
