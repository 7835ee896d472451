"""Runs model calls and tool calls, and gives a running tool its context."""
