"""Jobs whose workers come and go: who is in the job (pure), and which hosts there are."""
