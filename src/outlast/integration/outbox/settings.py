"""The settings of webhooks: secrets, timeouts, and how many are posted at once."""

import ssl
from datetime import timedelta

from msgspec import Struct

from outlast.core.instant import Span
from outlast.core.setting import count_of, seconds_of
from outlast.net.signature import Secrets, secrets_of

A_DAY = timedelta(days=1)


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """`secret` signs what goes to webhook URLs, and to subscriptions without one of their own.

    Several secrets sign together while receivers change from the old one to the new. Receivers
    in private networks are refused unless `allow_private`; `tls` verifies their certificates
    where the public authorities do not. A post has `timeout` to be answered; `at_once`
    sessions are told of at the same time, and no more than `at_once_per_receiver` to one host.
    An event that its receiver has not taken within `give_up` is listed as dead. `poll` is how
    often a worker looks for what no hint told it of.
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
