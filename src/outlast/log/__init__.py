"""Reading a session's log: events, outcomes, explanations, and whether it is sound."""
