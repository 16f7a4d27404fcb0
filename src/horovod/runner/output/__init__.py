"""Job output: lines from the workers, progress bars, output files, and the launcher's terminal."""
