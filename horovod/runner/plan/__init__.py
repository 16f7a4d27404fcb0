"""Who runs where, with what: pure."""
