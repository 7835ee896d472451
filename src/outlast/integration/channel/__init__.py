"""Conversations that people have elsewhere: in a chat, by mail, in another program.

A channel takes in what is said there, and tells there what its sessions answer.
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
from outlast.integration.channel.signed_webhook import SignedWebhookChannel

__all__ = [
    "DEFAULT_EVENTS",
    "Channel",
    "ChannelClient",
    "HttpReply",
    "Inbound",
    "InboundAnswer",
    "InboundRequest",
    "Outgoing",
    "ReceivedRequest",
    "SignInPrompt",
    "SignedWebhookChannel",
]
