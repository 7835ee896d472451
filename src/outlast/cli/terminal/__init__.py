"""Shared by the commands: how they read, print and ask on a terminal."""
