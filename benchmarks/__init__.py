"""What Outlast costs, measured against what the same work costs by hand.

`python -m benchmarks` runs all workloads, `python -m benchmarks overhead` one. Numbers that
carry a goal are ratios within one run on one machine; docs/explanation/benchmarks.md says what
they mean.
"""
