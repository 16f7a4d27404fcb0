"""Libraries that stand for those of vendors, where there is no GPU."""
