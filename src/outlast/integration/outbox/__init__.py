"""Events told to other programs: signed, at least once, in order for each session.

The log is the outbox. A cursor over it lies in the store for each consumer of a session, and the
dispatcher of every worker moves it: see `consumer.py` for who consumes, `dispatcher.py` for
when, `delivery.py` for how. `verify` is for programs that receive webhooks.
"""

from outlast.agents.subscription import DEFAULT_EVENTS, Subscription
from outlast.integration.outbox.settings import WebhookSettings
from outlast.net.signature import sign, verify

__all__ = ["DEFAULT_EVENTS", "Subscription", "WebhookSettings", "sign", "verify"]
