"""Jobs that start their ranks with another launcher: mpirun or jsrun."""
