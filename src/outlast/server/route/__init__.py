"""The routes, one file for what belongs together.

A route reads its request, asks the app, and shapes the answer (`server/model/`). Who the caller is
and what they may do is settled before, by the dependencies in `server/dependency.py`.
"""
