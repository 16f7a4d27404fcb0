"""Key exchange for ranks that another launcher has started: how they find each other and get the job's key."""
