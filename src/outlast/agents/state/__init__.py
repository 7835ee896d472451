"""Typed session state: slice types, their reducers, queries, changes and snapshots.

Public as `outlast.state`. Records and their fold are in `core/slice.py`.
"""
