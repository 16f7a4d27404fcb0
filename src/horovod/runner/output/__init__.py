"""Output of a job: lines of the workers, progress bars, output files, and the launcher's terminal."""
