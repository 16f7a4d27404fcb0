"""Who failed first and why, in words. Pure but for what endings collects."""
