"""The settings of webhooks: secrets, timeouts, and how many are posted at once."""

import ssl
from datetime import timedelta

from msgspec import Struct

from outlast.core.instant import Span
from outlast.core.setting import count_of, seconds_of
from outlast.net.signature import Secrets, secrets_of

A_DAY = timedelta(days=1)


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """How events are posted to webhooks and subscriptions, and sent by channels and hooks.

    Attributes:
        secret: Signs posts to webhook URLs, and to subscriptions without a secret of their own.
            Several sign together while receivers change from the old one to the new.
        allow_private: Allow receivers in private networks.
        timeout: Time for an answer.
        at_once: Sessions whose events a worker posts at the same time.
        at_once_per_receiver: Those of them that go to one host and port.
        give_up: After this time an event that was not taken is dead.
        poll: Time between two looks for new events, in case a hint was lost.
        tls: Verifies receivers whose certificates public authorities do not know.
    """

    secret: Secrets = ()
    allow_private: bool = False
    timeout: Span = 10.0
    at_once: int = 128
    at_once_per_receiver: int = 8
    give_up: Span = A_DAY
    poll: Span = 5.0
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        secrets_of(self.secret)
        for name in ("timeout", "poll"):
            seconds_of(f"{name} of webhooks", getattr(self, name))
        seconds_of("give_up of webhooks", self.give_up, or_none=True)
        for name in ("at_once", "at_once_per_receiver"):
            count_of(f"{name} of webhooks", getattr(self, name))

    def __repr__(self) -> str:
        return f"WebhookSettings(allow_private={self.allow_private}, timeout={self.timeout})"
