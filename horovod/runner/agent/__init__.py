"""What runs on each host: starts, watches and ends its workers."""
