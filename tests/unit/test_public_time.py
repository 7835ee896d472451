"""Instants that users get are datetimes; spans that users give are timedeltas or seconds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from inspect import signature
from typing import Any, get_args, get_type_hints

import pytest

from outlast.client import Client
from outlast.client.info import RemoteInfo, RemoteWait
from outlast.core.event import Event
from outlast.engine.settings import WorkerSettings
from outlast.errors import InvalidDefinition
from outlast.integration.channel import ChannelClient, SignedWebhookChannel
from outlast.integration.channel.inbound import InboundRequest
from outlast.integration.channel.outgoing import Outgoing, SignInPrompt
from outlast.integration.connection import Connection
from outlast.integration.outbox import WebhookSettings
from outlast.integration.remote.agent import RemoteAgent
from outlast.integration.schedule.status import ScheduleStatus
from outlast.log.explain import Cause, Explanation
from outlast.server import ServerSettings
from outlast.session import Request
from outlast.store import LaneInfo, SessionInfo, WorkerInfo

INSTANTS = ("at", "since", "until")
HANDED_OUT: list[type] = [
    *(SessionInfo, LaneInfo, WorkerInfo, RemoteInfo, RemoteWait, Request, Event, ScheduleStatus),
    *(Cause, Explanation, InboundRequest, Outgoing, SignInPrompt),
]
A_SECOND = timedelta(seconds=1)
SPANS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (WorkerSettings, ("lease", "poll", "watch", "grace", "stop_grace", "flush", "rest")),
    (WebhookSettings, ("timeout", "give_up", "poll")),
    (ServerSettings, ("heartbeat", "long_poll", "timeout", "body_timeout")),
    (Connection, ("timeout", "sign_in_timeout")),
    (Client, ("retry_timeout", "stream_timeout", "timeout", "silence")),
    (RemoteAgent, ("timeout", "poll")),
    (ChannelClient, ("timeout",)),
    (SignedWebhookChannel, ("tolerance",)),
]


@pytest.mark.parametrize("kind", HANDED_OUT, ids=lambda kind: kind.__name__)
def test_an_instant_that_users_get_is_a_datetime(kind: type) -> None:
    hints = get_type_hints(kind)
    instants = {
        name: {each for each in (get_args(hint) or (hint,)) if each is not type(None)}
        for name, hint in hints.items()
        if name.rpartition("_")[2] in INSTANTS
    }

    assert instants
    assert all(types == {datetime} for types in instants.values()), instants


@pytest.mark.parametrize(("kind", "names"), SPANS)
def test_a_span_is_a_timedelta_or_seconds(kind: Callable[..., Any], names: tuple[str, ...]) -> None:
    hints = get_type_hints(kind if isinstance(kind, type) and not signs(kind) else kind.__init__)

    for name in names:
        assert {timedelta, float} <= {*get_args(hints[name])}, name


def signs(kind: type) -> bool:
    """Whether its own signature is written out, and does not follow from its fields."""
    return "__init__" in vars(kind)


@pytest.mark.parametrize("kind", [WorkerSettings, WebhookSettings, ServerSettings])
def test_settings_take_a_timedelta_and_refuse_what_is_no_time(kind: Callable[..., Any]) -> None:
    name = next(name for given, names in SPANS for name in names if given is kind)

    assert getattr(kind(**{name: A_SECOND}), name) == A_SECOND
    with pytest.raises(InvalidDefinition, match=f"{name}.* has to be a number of seconds"):
        kind(**{name: "soon"})
    assert name in signature(kind).parameters


def test_a_remote_agent_and_a_client_take_timedeltas() -> None:
    assert (
        RemoteAgent("far", "http://far.example", poll=A_SECOND, timeout=A_SECOND).host.poll == 1.0
    )
    Client("http://far.example", retry_timeout=A_SECOND, stream_timeout=None, silence=A_SECOND)
    with pytest.raises(InvalidDefinition, match="timeout"):
        Client("http://far.example", timeout=-1)
