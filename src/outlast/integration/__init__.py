"""Connects sessions to the outside world: webhooks, channels, schedules, other servers."""
