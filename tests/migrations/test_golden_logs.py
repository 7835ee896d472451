"""Logs of every format that was ever written are read as today's, and still fold.

`golden/log_format_*.msgpack` holds sessions, each an array of stored commits. The file beside it
says what is to be read from each. Once a release has written a format, neither changes again.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.core.codec import Packer, version_of
from outlast.core.event import type_of
from outlast.core.fold import fold_all
from outlast.core.index import status_of
from outlast.core.lane import Lane
from outlast.core.record import FORMAT, DeliverySettled, Entry
from outlast.core.view import View

NOTHING: dict[str, bytes] = {}


GOLDEN = Path(__file__).parent / "golden"
LOGS = sorted(GOLDEN.glob("log_format_*.msgpack"))


def sessions(path: Path) -> list[list[bytes]]:
    return msgspec.msgpack.decode(path.read_bytes(), type=list[list[bytes]])


def read(rows: list[bytes]) -> list[Entry]:
    packer = Packer()
    records = [record for row in rows for record in packer.unpack(row, NOTHING.__getitem__)]
    return [Entry(offset, offset, "main", record) for offset, record in enumerate(records, 1)]


def summary(entries: list[Entry]) -> dict[str, Any]:
    """What a reader, a model and a listing get from a log."""
    lane, view = fold_all(Lane(session="ses_1"), entries), View()
    view.see_all(entries, "main")
    settled = [e.record for e in entries if isinstance(e.record, DeliverySettled)]
    return {
        "types": [type_of(entry.record) for entry in entries],
        "settled": [[record.delivery_id, record.outcome] for record in settled],
        "history": msgspec.to_builtins(view.messages, builtin_types=()),
        "status": status_of(lane),
        "turns": lane.turns,
    }


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_of_any_release_is_read_as_it_was_meant(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())

    found = [summary(read(rows)) for rows in sessions(path)]
    assert json.loads(json.dumps(found)) == expected


def test_there_is_a_golden_log_of_every_format() -> None:
    rows = [row for path in LOGS for session in sessions(path) for row in session]

    assert {version_of(row) for row in rows} == set(range(1, FORMAT + 1))
