"""What `verify` finds wrong with what rules are said to have said."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from unit.history import (
    Log,
    accepts_answer,
    answers,
    gives_feedback,
    message,
    refuses_answer,
    returns,
    starts,
    step_begins,
    turn_begins,
    wants,
)

from outlast.core import record as r
from outlast.core.prompt import prompt_digest, section_digest
from outlast.core.record import AnyRecord
from outlast.log.verify.rule import broken_rules

CALLED = (message(), *turn_begins(), *wants("find"), starts())
DONE = (*CALLED, returns())
ASKED = (message(), *turn_begins())
ANSWERED = (message(), *turn_begins(), answers())
WORK = r.PromptSection("work", section_digest("Work."), "Work.")
KNOWN = replace(WORK, text="")
SILENT = r.FeedbackSkipped(turn="t1", step=1, name="stay", since=0)


def prompt(*sections: r.PromptSection, digest: str = "") -> AnyRecord:
    digest = digest or prompt_digest(sections)
    return r.PromptRendered(call_id="t1.s1", attempt=1, digest=digest, sections=sections)


def codes(records: Sequence[AnyRecord], last: AnyRecord) -> list[str]:
    return [code for code, _ in broken_rules(Log(*records).lane, last)]


@pytest.mark.parametrize(
    ("records", "last"),
    [
        (DONE, gives_feedback()),
        ((*DONE, gives_feedback("hurry")), SILENT),
        (
            (*ANSWERED, refuses_answer(), *step_begins(2), answers(call_id="t1.s2")),
            refuses_answer(2, step=2),
        ),
        (ANSWERED, accepts_answer()),
        (ASKED, prompt(WORK)),
        ((*ASKED, prompt(WORK)), prompt(KNOWN, replace(WORK, key="more"))),
    ],
)
def test_what_rules_say_in_their_place_is_sound(
    records: Sequence[AnyRecord], last: AnyRecord
) -> None:
    assert codes(records, last) == []


@pytest.mark.parametrize(
    ("records", "last", "code"),
    [
        ((message(),), gives_feedback(), "UNKNOWN_STEP"),
        (DONE, gives_feedback(step=2), "UNKNOWN_STEP"),
        ((message(), *turn_begins()), accepts_answer(), "NOT_ANSWERED"),
        (CALLED, gives_feedback(), "CALL_LEFT_OPEN"),
        (CALLED, accepts_answer(), "CALL_LEFT_OPEN"),
        ((*DONE, SILENT), gives_feedback(), "HEARD_TWICE"),
        (ASKED, prompt(KNOWN), "TEXT_MISSING"),
        (ASKED, prompt(WORK, digest="another"), "WRONG_DIGEST"),
        (ASKED, prompt(replace(WORK, text="Rest.")), "WRONG_DIGEST"),
        ((*ANSWERED, accepts_answer()), accepts_answer(), "CHECKED_TWICE"),
        ((*ANSWERED, refuses_answer()), refuses_answer(2), "CHECKED_TWICE"),
        (ANSWERED, refuses_answer(2), "WRONG_COUNT"),
    ],
)
def test_what_rules_cannot_have_said_is_found(
    records: Sequence[AnyRecord], last: AnyRecord, code: str
) -> None:
    assert code in codes(records, last)
