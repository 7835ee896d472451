"""The model clients: what an agent asks of a model, and the providers behind it."""
