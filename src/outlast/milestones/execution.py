"""What the files of an execution hold, and how they are written down so that damage is noticed.

Every file is an envelope in JSON: a format, a digest, and what the digest is of. Large ones are
compressed as a whole. Knows no paths; the files themselves are in `directory.py`.
"""

from hashlib import sha256
from typing import TypeVar

import msgspec
import zstandard
from msgspec import Raw, Struct

from outlast.core.record import UsageSum
from outlast.errors import StoreFromTheFuture

FORMAT = 1
LARGE = 64 * 1024
"""From so many bytes on a file is compressed."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class DamagedFile(Exception):
    """A file holds something else than was written."""


class Execution(Struct, frozen=True, kw_only=True):
    """What is asked for, and the facts that no crash renews. `request.json` is this.

    All other files have it as well: `id` says which execution they are of, and any of them can
    stand in for a `request.json` that is damaged. Instants are milliseconds since the epoch.
    """

    id: str
    session_id: str
    started_at: int
    deadline_at: int = 0
    request: Raw


class ExecutionProgress(Struct, frozen=True, kw_only=True):
    """How often the execution was begun or gone on with, and what its model calls have used."""

    execution: Execution
    attempts: int = 0
    usage: UsageSum = UsageSum()


class SavedCheckpoint(Struct, frozen=True, kw_only=True):
    """The session's state at a milestone. Of two, the one with the higher `number` is newer."""

    execution: Execution
    number: int
    attempts: int
    usage: UsageSum
    written_at: int
    snapshot: Raw


class CompletedExecution(Struct, frozen=True, kw_only=True):
    """How the execution ended: with this `output`, as JSON."""

    execution: Execution
    attempts: int
    usage: UsageSum
    completed_at: int
    output: Raw


class FileEnvelope(Struct, frozen=True, kw_only=True):
    """What all files are. `sha256` is the digest of the body's bytes as they stand here.

    In every format there is a `format`; the rest may be missing in another one than today's.
    """

    format: int
    sha256: str = ""
    body: Raw = Raw(b"null")


Body = TypeVar("Body", bound=Struct)


def packed(body: Struct) -> bytes:
    """Return what is written to a file."""
    raw = msgspec.json.encode(body)
    envelope = FileEnvelope(format=FORMAT, sha256=sha256(raw).hexdigest(), body=Raw(raw))
    data = msgspec.json.encode(envelope)
    return zstandard.compress(data) if len(data) >= LARGE else data


def unpacked(data: bytes, kind: type[Body]) -> Body:
    """Return what was written to a file. Raises DamagedFile if it is not all there, or changed."""
    try:
        text = zstandard.decompress(data) if data.startswith(ZSTD_MAGIC) else data
        envelope = msgspec.json.decode(text, type=FileEnvelope)
    except (zstandard.ZstdError, ValueError, RecursionError) as error:
        raise DamagedFile(str(error)) from error
    if envelope.format != FORMAT:
        raise StoreFromTheFuture(
            f"a file of this execution is of the format {envelope.format}, and {FORMAT} is known"
            " here: go on with the version of Outlast that has written it"
        )
    raw = bytes(envelope.body)
    if sha256(raw).hexdigest() != envelope.sha256:
        raise DamagedFile("it holds something else than was written")
    try:
        return msgspec.json.decode(raw, type=kind)
    except ValueError as error:
        raise DamagedFile(str(error)) from error
