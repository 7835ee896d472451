"""The types of requests and responses; the OpenAPI document is made of them.

They own what callers may see and say over the wire, and refuse to know routes (`server/route/`).
A field's description is for readers of that document.
"""
