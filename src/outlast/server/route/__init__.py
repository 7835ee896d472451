"""The routes, one file for what belongs together."""
