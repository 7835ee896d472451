"""The pure heart: what has happened, what comes next, how to write it down.

Knows no clock, no chance, no database, no model and no network. Time and new
names come in as arguments; everything here gives the same answer every time.
"""
