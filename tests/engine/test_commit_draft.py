"""What waits beside the log for the next commit, and what is left of it when one has landed."""

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.limit import freed_by
from outlast.core.record import Failure
from outlast.engine.commit_draft import NOTHING, CommitDraft
from outlast.store import Commit, EffectClaim


def hold(key: str) -> EffectClaim:
    return EffectClaim("tenant:t", key, "ses_1", "t1.s1.c1")


def commit(beside: CommitDraft) -> Commit:
    return Commit(
        session_id="ses_1",
        lane="main",
        worker="w1",
        fence=1,
        number=0,
        seen=0,
        at=0,
        records=(r.ToolWoken(call_id="t1.s1.c1", name="ask:1"),),
        body=b"",
        effects=beside.effects,
        frees=beside.frees,
    )


def test_what_was_noted_while_a_commit_was_on_its_way_waits_for_the_next() -> None:
    before, later = (
        CommitDraft(effects=(hold("a"),), frees=("c1",)),
        CommitDraft(effects=(hold("b"),)),
    )
    now = before.with_all(later)

    assert now.without(commit(before), NOTHING) == later


def test_what_went_along_with_a_commit_apart_takes_nothing_from_what_waits() -> None:
    before, apart = (
        CommitDraft(effects=(hold("a"),)),
        CommitDraft(effects=(hold("x"),), frees=("c9",)),
    )
    later = CommitDraft(effects=(hold("b"),), frees=("c2",))
    landed = commit(before.with_all(apart))

    assert before.with_all(later).without(landed, apart) == later


def test_nothing_is_left_where_all_has_landed() -> None:
    before = CommitDraft(effects=(hold("a"),), frees=("c1",))

    assert before.without(commit(before), NOTHING) is NOTHING


def test_a_step_that_failed_frees_nothing_yet_since_calls_may_still_run() -> None:
    failed = r.StepFailed(turn="t1", step=1, error=Failure("EXPIRED", "nobody answered"))
    ended = r.TurnFailed(turn="t1", error=failed.error)

    assert freed_by(failed, ["t1.s1.c1"]) == []
    assert freed_by(ended, ["t1.s1.c1"]) == ["t1.s1.c1"]


def test_a_call_that_shows_what_somebody_elsewhere_is_asked_goes_on() -> None:
    asked = r.RequestOpened(request_id="q1", kind="approval", prompt="?", call_id="t1.s1.c1")

    assert freed_by(asked, ["t1.s1.c1"]) == ["t1.s1.c1"]
    assert freed_by(replace(asked, origin="q9"), ["t1.s1.c1"]) == []
