"""Output of the workers: lines, progress bars, files, and the launcher's own terminal."""
