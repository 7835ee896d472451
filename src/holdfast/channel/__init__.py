"""Conversations that people have elsewhere: in a chat, by mail, in another program.

A channel takes in what is said there, and tells there what its sessions answer.
"""

from holdfast.channel.channel import DEFAULT_EVENTS, Channel
from holdfast.channel.inbound import Immediate, Inbound, InboundRequest, Received, Reply
from holdfast.channel.outgoing import Outgoing, SignIn
from holdfast.channel.post import Post
from holdfast.channel.signed import SignedWebhookChannel

__all__ = [
    "DEFAULT_EVENTS",
    "Channel",
    "Immediate",
    "Inbound",
    "InboundRequest",
    "Outgoing",
    "Post",
    "Received",
    "Reply",
    "SignIn",
    "SignedWebhookChannel",
]
