"""`outlast demo`: an agent with real side effects whose workers are killed while it works."""
