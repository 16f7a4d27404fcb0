"""Jobs started by other launchers: mpirun and jsrun."""
