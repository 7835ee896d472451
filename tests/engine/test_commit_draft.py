"""What waits for a lane's next commit."""

import msgspec
import pytest
from msgspec.structs import replace

from outlast.core import codec
from outlast.core import record as r
from outlast.core.limit import freed_by
from outlast.core.record import Failure
from outlast.engine.commit_draft import CommitDraft
from outlast.errors import NotEncodable
from outlast.store import EffectClaim


def woken(name: str) -> r.ToolWoken:
    return r.ToolWoken(call_id="t1.s1.c1", name=name)


def draft(*names: str) -> CommitDraft:
    made = CommitDraft()
    made.add([woken(name) for name in names])
    made.effects += [EffectClaim("tenant:t", name, "ses_1", "t1.s1.c1") for name in names]
    made.frees += names
    return made


def body(made: CommitDraft) -> bytes:
    return codec.array_of(len(made.records), made.body)


def test_a_draft_that_is_put_back_comes_before_what_was_written_since() -> None:
    both = draft("a", "b").then(draft("c"))

    assert [record.name for record in both.records] == ["a", "b", "c"]  # type: ignore[union-attr]
    assert [effect.key for effect in both.effects] == both.frees == ["a", "b", "c"]
    assert body(both) == codec.encode(both.records)


def test_putting_a_draft_back_leaves_both_as_they_were() -> None:
    first, later = draft("a"), draft("b")
    first.then(later).add([woken("c")])

    assert (body(first), body(later)) == (body(draft("a")), body(draft("b")))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_records_encoded_one_by_one_are_the_array_of_them(count: int) -> None:
    assert codec.array_of(count, msgspec.msgpack.encode(None) * count) == codec.encode(
        [None] * count
    )


def test_of_records_of_which_one_cannot_be_stored_none_is_added() -> None:
    made = draft("a")
    with pytest.raises(NotEncodable):
        made.add([woken("b"), woken("\ud800")])

    assert (made.records, body(made)) == ([woken("a")], codec.encode([woken("a")]))


def test_a_call_that_begins_again_in_the_same_commit_keeps_its_permit() -> None:
    made = draft("a", "b")
    made.keep_permits(["b"])

    assert made.frees == ["a"]


def test_a_step_that_failed_frees_nothing_yet_since_calls_may_still_run() -> None:
    failed = r.StepFailed(turn="t1", step=1, error=Failure("EXPIRED", "nobody answered"))
    ended = r.TurnFailed(turn="t1", error=failed.error)

    assert freed_by(failed, ["t1.s1.c1"]) == []
    assert freed_by(ended, ["t1.s1.c1"]) == ["t1.s1.c1"]


def test_a_call_that_shows_what_somebody_elsewhere_is_asked_goes_on() -> None:
    asked = r.RequestOpened(request_id="q1", kind="approval", prompt="?", call_id="t1.s1.c1")

    assert freed_by(asked, ["t1.s1.c1"]) == ["t1.s1.c1"]
    assert freed_by(replace(asked, origin="q9"), ["t1.s1.c1"]) == []
