"""Streams of sessions: NDJSON, server-sent events, and the Durable Streams protocol.

`route.router` has the routes, `durable.durable_response` the same for another address of a
session. `feed.SessionFeeds`, which the backend holds, is closed before the server stops.
"""
