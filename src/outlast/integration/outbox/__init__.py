"""Events told to other programs: signed, at least once, in order for each session.

The log is the outbox: an outbox cursor is a cursor over it that lies in the store, and a courier in
every worker takes it forward. `verify` is for those who receive.
"""

from outlast.agents.subscription import DEFAULT_EVENTS, Subscription
from outlast.integration.outbox.settings import WebhookSettings
from outlast.net.signature import sign, verify

__all__ = ["DEFAULT_EVENTS", "Subscription", "WebhookSettings", "sign", "verify"]
