"""How ranks that another launcher started get the job's key and meet."""
