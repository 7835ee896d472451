"""What connects sessions to the world outside: webhooks, channels, schedules, other servers."""
