"""Key exchange for ranks that another launcher has started. The ranks find each other and get the job's key."""
