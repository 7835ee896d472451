"""The topic `document`: keys to the server, secrets, holds and schedules."""

from __future__ import annotations

from typing import Protocol

from outlast.store.key import Keys
from outlast.store.schedule import ScheduleRows
from outlast.store.vault import SecretStore


class DocumentStore(Keys, SecretStore, ScheduleRows, Protocol):
    """What is kept beside the sessions."""
