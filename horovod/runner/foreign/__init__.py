"""Jobs that others' launchers start for us: mpirun and jsrun."""
