"""What every face shares: starting the engine, operations, process sets, objects, settings. Knows no framework."""
