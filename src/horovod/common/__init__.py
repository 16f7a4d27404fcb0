"""Framework-independent code shared by all frontends: engine startup, operations, process sets, objects, settings."""
