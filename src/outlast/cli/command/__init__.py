"""The commands, one module each; `outlast.cli` puts them together."""
