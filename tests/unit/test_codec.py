from typing import Any

import msgspec
import pytest
import zstandard
from unit.history import message, turn_begins

from outlast.core import codec
from outlast.core import record as r
from outlast.core.codec import BLOB_OVER, COMPRESS_OVER, Packed, Packer, blob_names, encode
from outlast.core.message import File, Image, Text
from outlast.core.record import FORMAT, AnyRecord
from outlast.errors import NotEncodable, StoreCorrupt, StoreFromTheFuture

NOTHING: dict[str, bytes] = {}


FLAG = 1
COMPRESSED, HAS_BLOBS = 1, 2


def packed(*records: AnyRecord) -> Packed:
    return Packer().pack(encode(records))


def unpacked(stored: Packed) -> list[AnyRecord]:
    return Packer().unpack(stored.data, stored.blobs.__getitem__)


def said(*parts: Text | Image | File) -> AnyRecord:
    return r.DeliveryQueued(delivery_id="d1", content=parts)


def stored_as(version: int, *values: dict[str, object]) -> bytes:
    return bytes((version, 0)) + msgspec.msgpack.encode(values)


def no_blob(name: str) -> bytes:
    raise AssertionError(f"nobody should ask for {name}")


def test_stored_records_begin_with_their_format() -> None:
    assert packed(message()).data[0] == FORMAT


def test_what_is_small_is_stored_as_it_is() -> None:
    stored = packed(*turn_begins())

    assert stored.data[FLAG] == 0
    assert unpacked(stored) == turn_begins()


def test_what_is_over_512_bytes_is_compressed() -> None:
    size = len(encode([message(text="")]))
    at_most, over = (message(text="x" * (COMPRESS_OVER - size - 2 + more)) for more in (0, 1))
    assert (len(encode([at_most])), len(encode([over]))) == (512, 513)

    assert packed(at_most).data[FLAG] == 0
    assert packed(over).data[FLAG] == COMPRESSED
    assert len(packed(over).data) < 200
    assert unpacked(packed(over)) == [over]


def test_a_value_over_64_kib_is_taken_out_as_a_blob() -> None:
    at_most, over = "x" * BLOB_OVER, "y" * (BLOB_OVER + 1)
    record = said(Text(at_most), Text(over))

    stored = packed(record)

    assert list(stored.blobs.values()) == [over.encode()]
    assert stored.data[FLAG] & HAS_BLOBS
    assert unpacked(stored) == [record]


def test_bytes_stay_bytes_and_text_stays_text() -> None:
    same = b"z" * (BLOB_OVER + 1)
    record = said(Image(data=same), File(data=b"small"), Text(same.decode()))

    stored = packed(record)

    assert len(stored.blobs) == 1
    assert unpacked(stored) == [record]


def test_the_size_of_a_text_is_that_of_its_bytes() -> None:
    record = said(Text("€" * (BLOB_OVER // 3 + 1)))

    stored = packed(record)

    assert len(stored.blobs) == 1
    assert unpacked(stored) == [record]


def test_a_blob_is_named_by_its_content() -> None:
    large = said(Text("x" * (BLOB_OVER + 1)))

    assert packed(large).blobs.keys() == packed(large, message()).blobs.keys()
    assert blob_names(packed(large).data, Packer()) == set(packed(large).blobs)
    assert blob_names(packed(message()).data, Packer()) == set()


def test_a_log_of_the_future_is_refused() -> None:
    with pytest.raises(StoreFromTheFuture, match="upgrade Outlast") as refused:
        Packer().unpack(bytes((FORMAT + 1, 0)) + b"\x90", no_blob)

    assert refused.value.details["format"] == FORMAT + 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02",
        bytes((FORMAT, 0)) + b"\xc1",
        bytes((FORMAT, 0)) + b"not msgpack",
        bytes((FORMAT, COMPRESSED)) + b"not zstandard",
        bytes((FORMAT, COMPRESSED)) + zstandard.compress(b"\xc1"),
        bytes((FORMAT, HAS_BLOBS)) + b"\xc1",
        stored_as(FORMAT, {"type": "no.such_record"}),
        stored_as(FORMAT, {"no": "type"}),
        stored_as(FORMAT, {"type": "turn.started"}),
        stored_as(1, {"type": "no.such_record"}),
        stored_as(1, {"no": "type"}),
        stored_as(1, {"type": "tool.failed"}),
        bytes((1, 0)) + msgspec.msgpack.encode("no array"),
    ],
    ids=repr,
)
def test_what_cannot_be_read_is_called_corrupt(data: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        Packer().unpack(data, no_blob)


def test_a_blob_that_is_missing_or_damaged_is_called_corrupt() -> None:
    stored = packed(said(Text("x" * (BLOB_OVER + 1))))

    with pytest.raises(StoreCorrupt):
        Packer().unpack(stored.data, NOTHING.__getitem__)
    with pytest.raises(StoreCorrupt):
        Packer().unpack(stored.data, lambda _: b"\xff\xff")


def test_a_squeezed_value_comes_back_and_a_damaged_one_is_called_corrupt() -> None:
    packer = Packer()

    assert packer.expand(packer.squeeze(b"x" * 1000)) == b"x" * 1000
    with pytest.raises(StoreCorrupt):
        packer.expand(b"damaged")


def test_what_cannot_be_stored_is_refused_before_it_is() -> None:
    with pytest.raises(NotEncodable):
        encode([message(text="\ud800")])


def test_a_record_of_an_older_format_is_read_as_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_code(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "error": {"code": "TOOL_ERROR", "message": values["error"]}}

    monkeypatch.setattr(codec, "FORMAT", 2)
    monkeypatch.setitem(codec.UPCASTS, 1, {"tool.failed": with_code})
    old = stored_as(1, {"type": "tool.failed", "call_id": "c", "attempt": 1, "error": "no luck"})

    [record] = Packer().unpack(old, no_blob)

    failure = r.Failure("TOOL_ERROR", "no luck")
    assert record == r.ToolFailed(call_id="c", attempt=1, error=failure)


def test_formats_between_which_nothing_changed_do_not_keep_a_record_from_todays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def renamed(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "message": values["text"]}

    monkeypatch.setitem(codec.UPCASTS, 3, {"note": renamed})

    assert codec.upcast({"type": "note", "text": "hi"}, 1)["message"] == "hi"
