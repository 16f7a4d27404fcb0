"""What all of the launcher stands on: starting Pythons, Linux, signals, errors."""
