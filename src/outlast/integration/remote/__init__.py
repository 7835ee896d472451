"""An agent of another Outlast, asked over HTTP as if it were one of this app's.

Its session there is a child of the call that asks, with its address in the records of that call. It
is started under the id of the request by which it is waited for, so that no retry starts it twice.
The other server's signed webhook says when to look at it, and a poll that gets slower makes up for
lost webhooks. A human is asked here for what the session asks there. `agent.py` is what users
define, `host.py` what the engine asks of it, `contact.py` makes one contact, `peer.py` speaks to
the other server, `cancellation.py` ends what is no longer wanted. When a server is contacted, and
what that means, is the core's to say: `core/remote_child.py`.
"""
