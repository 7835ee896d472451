"""Many readers of many sessions: what a server of streams takes, and how late it is.

`python -m benchmarks.load` starts one server and one worker on this machine, opens streams to
them over the loopback, has all sessions speak, and stops by itself. Nothing is asserted.
"""
