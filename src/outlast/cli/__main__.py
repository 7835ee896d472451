"""`python -m outlast.cli`."""

from outlast.cli import main

main()
