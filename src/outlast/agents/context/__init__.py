"""What an agent's model sees of a long session: `Agent(context=ContextPolicy(…))`."""
