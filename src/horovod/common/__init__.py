"""Framework-independent code that all frontends share: engine start, operations, process sets, objects, settings."""
