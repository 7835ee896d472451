"""What runs a call: model calls, tool calls, and what a tool may use while it runs."""
