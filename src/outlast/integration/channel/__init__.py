"""Channels: conversations in a chat, by mail, or in another program.

A channel verifies and reads what is posted to it (`receiver.py`), and sends what its sessions
answer (`sender.py`). `channel.py` is the contract for those who write one.
"""

from outlast.integration.channel.channel import DEFAULT_EVENTS, Channel
from outlast.integration.channel.http import ChannelClient
from outlast.integration.channel.inbound import (
    HttpReply,
    Inbound,
    InboundAnswer,
    InboundRequest,
    ReceivedRequest,
)
from outlast.integration.channel.outgoing import Outgoing, SignInPrompt
from outlast.integration.channel.receiver import ChannelReceiver
from outlast.integration.channel.signed_webhook import SignedWebhookChannel

__all__ = [
    "DEFAULT_EVENTS",
    "Channel",
    "ChannelClient",
    "ChannelReceiver",
    "HttpReply",
    "Inbound",
    "InboundAnswer",
    "InboundRequest",
    "Outgoing",
    "ReceivedRequest",
    "SignInPrompt",
    "SignedWebhookChannel",
]
