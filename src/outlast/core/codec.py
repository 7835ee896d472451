"""Records to bytes and back.

A commit's records are one msgpack array, preceded by two bytes: the format in
which they were written, and flags. Over 512 bytes the array is compressed. Strings
and bytes over 64 KiB are taken out as blobs, named by the hash of their content, and
leave an extension value with that name in their place. Old records are upcast when they are
read; stored bytes are never rewritten.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import zstandard

from outlast.core.record import FORMAT, AnyRecord
from outlast.errors import NotEncodable, StoreCorrupt, StoreFromTheFuture

COMPRESS_OVER = 512
BLOB_OVER = 64 * 1024

COMPRESSED = 1
HAS_BLOBS = 2

CHECKSUM_DIGITS = 8

TEXT_BLOB = 1
BYTES_BLOB = 2

UNREADABLE = (zstandard.ZstdError, msgspec.MsgspecError, KeyError, TypeError, UnicodeError)
"""Exceptions of damaged bytes: while expanding, decoding, upcasting or restoring blobs."""

UNENCODABLE = (TypeError, ValueError, OverflowError)
"""Exceptions of values without a form in msgpack: lone surrogates, integers over 64 bits."""

_encoder = msgspec.msgpack.Encoder()
encode_into = _encoder.encode_into
"""Adds a value to an array of bytes, from a position on; -1 is its end."""
_decoder = msgspec.msgpack.Decoder(list[AnyRecord])

T = TypeVar("T")
LoadBlob = Callable[[str], bytes]

NO_BLOBS: Mapping[str, bytes] = {}

Values = dict[str, Any]
UPCASTS: dict[int, dict[str, Callable[[Values], Values]]] = {}
"""Per format n and record type: how plain values change from n to n + 1; a type that is not named
did not change. There is none yet: until the first release the format is 1."""


class Packed(msgspec.Struct, frozen=True):
    """A commit's records as they are stored, and the blobs that they refer to."""

    data: bytes
    blobs: Mapping[str, bytes] = {}


def encode(records: Sequence[Any]) -> bytes:
    """Return the records as one msgpack array."""
    try:
        return _encoder.encode(records)
    except UNENCODABLE as error:
        raise not_encodable(error) from error


def encode_checked(records: Sequence[AnyRecord]) -> bytes:
    """Return records from outside as one msgpack array that can be read again.

    Types are looked at when a log is read and not when it is written, and a log that cannot be
    read is lost. Raises NotEncodable, which names the record and the field at fault.
    """
    try:
        body = _encoder.encode(records)
        _decoder.decode(body)
    except (*UNENCODABLE, msgspec.MsgspecError):
        for record in records:
            # Only now one by one: to name the record at fault costs nothing where there is none.
            check_record(record)
        raise
    return body


def check_record(record: AnyRecord) -> None:
    """Raise NotEncodable, naming the record, if it could not be stored and read again."""
    try:
        _decoder.decode(_encoder.encode([record]))
    except (*UNENCODABLE, msgspec.MsgspecError) as error:
        kind = type(record).__struct_config__.tag
        why = str(error).replace("$[0]", "$")
        raise NotEncodable(f"a record {kind} cannot be stored: {why}") from error


def array_of(count: int, items: bytes | bytearray) -> bytes:
    """Return the msgpack array of so many items that were encoded one after the other."""
    if count < 16:
        return bytes((0x90 | count,)) + items
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2) + items
    return b"\xdd" + count.to_bytes(4) + items


def not_encodable(error: Exception) -> NotEncodable:
    return NotEncodable(f"this cannot be stored: {error}")


def proven(value: T, reader: msgspec.msgpack.Decoder[T]) -> T:
    """Return what came from outside as it will be read; refuse what could not be.

    Types are looked at when a log is read and not when it is written, and a log that cannot be
    read is lost.
    """
    try:
        return reader.decode(_encoder.encode(value))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise NotEncodable(f"this cannot be stored: {error}") from error


class Packer:
    """Turns encoded records into what is stored. Each thread has its own."""

    def __init__(self) -> None:
        # On a few KB a higher level takes twice as long and gains a hundredth.
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()

    def pack(self, body: bytes) -> Packed:
        """Return the stored form of an encoded array of records."""
        # A body that is smaller has no value that large: nearly all are not looked through.
        body, blobs = take_out_blobs(body) if len(body) > BLOB_OVER else (body, NO_BLOBS)
        if len(body) > COMPRESS_OVER:
            return packed(self._compressor.compress(body), blobs, COMPRESSED)
        return packed(body, blobs, 0)

    def unpack(self, data: bytes, load_blob: LoadBlob) -> list[AnyRecord]:
        """Return the records, whatever format they were written in."""
        version, flags = version_of(data), data[1]
        body = data[2:]
        try:
            if flags & COMPRESSED:
                body = self._decompressor.decompress(body)
            # The usual row is decoded into records at once: plain values are made only where there
            # is something to change in them.
            if version == FORMAT and not flags & HAS_BLOBS:
                return _decoder.decode(body)
            return convert(put_back_blobs(body, load_blob), version)
        except UNREADABLE as error:
            raise StoreCorrupt(
                f"a part of the log cannot be read: {error}; restore it from a backup"
            ) from error

    def squeeze(self, data: bytes) -> bytes:
        """Compress a blob or a snapshot."""
        return self._compressor.compress(data)

    def expand(self, data: bytes) -> bytes:
        """Undo `squeeze`."""
        try:
            return self._decompressor.decompress(data)
        except zstandard.ZstdError as error:
            raise StoreCorrupt(
                f"a stored value cannot be read: {error}; restore it from a backup"
            ) from error


def packed(body: bytes, blobs: Mapping[str, bytes], flags: int) -> Packed:
    flags |= HAS_BLOBS if blobs else 0
    return Packed(bytes((FORMAT, flags)) + body, blobs)


def checksum_of(at: int, data: bytes) -> str:
    """Return the checksum of a row of the log: its time and its stored bytes.

    Two histories of a session that part at some place have different rows from there on: a record
    that is written again gets another time, and new ids. So an offset and the checksum of the row
    that holds it name all of the log up to there, for ever. Functions of PostgreSQL compute the
    same (functions/reading.sql).
    """
    return sha256(at.to_bytes(8, "big", signed=True) + data).hexdigest()[:CHECKSUM_DIGITS]


def size_of_row(data: bytes) -> int:
    """Return how large a row of the log is in memory, without the blobs that it refers to.

    Pages are bounded by this, not by stored bytes: a text may be a thousand times as large as its
    compressed form.
    """
    return size_of_value(data[2:]) if data[1:2] and data[1] & COMPRESSED else len(data)


def size_of_value(data: bytes) -> int:
    """Return how large a compressed value is, of which the first 18 bytes are given at least."""
    try:
        # The frame says it in its head: nothing is expanded to be measured.
        return max(len(data), zstandard.frame_content_size(data))
    except zstandard.ZstdError:  # unpacking it says what is wrong with it
        return len(data)


def version_of(data: bytes) -> int:
    """Return the format in which stored records were written; refuse one of the future."""
    if len(data) < 2:
        raise StoreCorrupt("a part of the log is empty; restore it from a backup")
    if data[0] > FORMAT:
        raise StoreFromTheFuture(
            f"this log was written in format {data[0]} and this Outlast reads up to {FORMAT};"
            " upgrade Outlast",
            format=data[0],
        )
    return data[0]


def convert(raw: list[dict[str, Any]], version: int) -> list[AnyRecord]:
    """Return plain values of an older format as records."""
    return msgspec.convert([upcast(item, version) for item in raw], list[AnyRecord])


def upcast(values: Values, version: int) -> Values:
    """Return a record's plain values as the current format has them."""
    # One format after the other, so that each change is written once, whatever comes later.
    for each in range(version, max(UPCASTS, default=0) + 1):
        if change := UPCASTS.get(each, {}).get(values["type"]):
            values = change(values)
    return values


def blob_name(value: bytes) -> str:
    return sha256(value).hexdigest()


def take_out_blobs(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return the array with its large values replaced by their names, and those values."""
    blobs: dict[str, bytes] = {}

    def walk(value: Any) -> Any:
        match value:
            # In characters, of which UTF-8 takes four bytes at most: shorter texts need not be
            # encoded to be measured.
            case str() | bytes() if len(value) > BLOB_OVER // 4:
                return shrink(value)
            case dict():
                return {key: walk(item) for key, item in value.items()}
            case list():
                return [walk(item) for item in value]
        return value

    def shrink(value: str | bytes) -> Any:
        raw = value.encode() if isinstance(value, str) else value
        if len(raw) <= BLOB_OVER:
            return value
        name = blob_name(raw)
        blobs[name] = raw
        code = TEXT_BLOB if isinstance(value, str) else BYTES_BLOB
        return msgspec.msgpack.Ext(code, bytes.fromhex(name))

    return _encoder.encode(walk(msgspec.msgpack.decode(body))), blobs


def put_back_blobs(body: bytes, load_blob: LoadBlob) -> Any:
    def restore(code: int, data: memoryview) -> str | bytes:
        raw = load_blob(data.hex())
        return raw.decode() if code == TEXT_BLOB else raw

    return msgspec.msgpack.Decoder(ext_hook=restore).decode(body)


def blob_names(data: bytes, packer: Packer) -> set[str]:
    """Return the names of the blobs that stored records refer to."""
    if not data[1] & HAS_BLOBS:
        return set()
    names: set[str] = set()
    body = packer.expand(data[2:]) if data[1] & COMPRESSED else data[2:]

    def note(name: str) -> bytes:
        names.add(name)
        return b""

    put_back_blobs(body, note)
    return names
