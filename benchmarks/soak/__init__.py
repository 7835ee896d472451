"""Turns at a steady rate for a quarter of an hour: does anything grow, or get slower?

Not part of the suite of benchmarks, since it takes so long and has one goal only. Start it with
`make soak`.
"""
