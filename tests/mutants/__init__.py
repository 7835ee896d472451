"""Small changes of the code that some test has to notice: `make mutants`."""
