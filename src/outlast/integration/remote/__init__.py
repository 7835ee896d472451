"""An agent of another Outlast, asked over HTTP as if it were one of this app's.

It is started under the call's own key, so that no retry starts it twice. Its server's signed
webhook says when to look at it, and a poll that gets slower is the net beneath. What it asks a
human is asked here. All of it is a wait or a recorded step of the tool that asks.
"""
