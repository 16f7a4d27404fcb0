"""Key exchange, by which ranks started by another launcher get the job's key and find each other."""
