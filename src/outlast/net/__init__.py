"""Calls to places that users name: one guarded client, and what it refuses to reach."""
