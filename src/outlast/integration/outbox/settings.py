"""How webhooks are sent. Durations are seconds."""

import ssl

from msgspec import Struct

from outlast.errors import InvalidDefinition
from outlast.net.signature import Secrets, secrets_of

DAY = 86_400.0


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """`secret` signs what goes to webhook URLs, and to subscriptions without one of their own.

    Several secrets sign together while receivers change from the old one to the new. Receivers
    in private networks are refused unless `allow_private`; `tls` verifies their certificates
    where the public authorities do not. A post has `timeout` seconds to be answered; `at_once`
    sessions are told of at the same time, and no more than `at_once_per_receiver` to one host.
    An event that its receiver has not taken within `give_up` is listed as dead. `poll` is how
    often a worker looks for what no hint told it of.
    """

    secret: Secrets = ()
    allow_private: bool = False
    timeout: float = 10.0
    at_once: int = 128
    at_once_per_receiver: int = 8
    give_up: float = DAY
    poll: float = 5.0
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        secrets_of(self.secret)
        if min(self.timeout, self.at_once, self.at_once_per_receiver, self.poll) <= 0:
            raise InvalidDefinition(
                "timeout, at_once, at_once_per_receiver and poll of webhooks are over 0"
            )

    def __repr__(self) -> str:
        return f"WebhookSettings(allow_private={self.allow_private}, timeout={self.timeout})"
