"""The engine: workers that claim lanes and run them, on any store, for any agent.

Owns leases, claims, the loop of a lane and its commits. Refuses to know databases (`store/`),
models and tools (`agents/`). Begin with `worker.py`, then `lane_runner.py`.
"""
