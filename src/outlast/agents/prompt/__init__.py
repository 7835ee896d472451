"""Prompts made of sections. `outlast.prompts` is where users import from."""
