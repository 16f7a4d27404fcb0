"""Framework-independent code shared by all frontends: engine start, operations, process sets, objects, settings."""
