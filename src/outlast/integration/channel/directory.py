"""The channels of an app by name, each with its agent."""

from collections.abc import Mapping, Sequence

from outlast.core.setting import listed
from outlast.errors import InvalidDefinition
from outlast.integration.channel.channel import Channel
from outlast.integration.outbox.webhook import Subscriber


def channels_by_name(
    channels: Sequence[Channel], agents: Mapping[str, Subscriber]
) -> dict[str, Channel]:
    """Return channels by name, if each has an agent of this app and no two have one name."""
    found: dict[str, Channel] = {}
    for channel in listed("channels", channels):
        if not isinstance(channel, Channel):
            raise InvalidDefinition(f"a {type(channel).__name__} is not a Channel")
        if channel.name in found:
            raise InvalidDefinition(f"two channels are named {channel.name}", channel=channel.name)
        if channel.agent not in agents:
            raise InvalidDefinition(
                f"channel {channel.name} is for the agent {channel.agent}, which this app has not",
                channel=channel.name,
            )
        found[channel.name] = channel
    return found
