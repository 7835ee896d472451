"""What `verify` finds wrong with what the model is said to see."""

from collections.abc import Sequence
from typing import Any

import pytest
from unit.history import (
    Log,
    answers,
    message,
    returns,
    settles,
    starts,
    turn_begins,
    turn_completes,
    wants,
)

from outlast.core import record as r
from outlast.core.record import AnyRecord, Failure
from outlast.log.verify.log import SessionLog

STEP_OVER = r.StepCompleted(turn="t1", step=1)
CALLED = (message(), *turn_begins(), *wants("find"), starts(), returns())
OVER = (message(), *turn_begins(), answers(), STEP_OVER, turn_completes(), settles())
"""The turn began at 3, was answered at 6, and its step was over at 7."""
ASKS = r.ContextChangeRequested(delivery_id="d9", op="rewind", turn="t1")
BEGUN = r.SummaryStarted(call_id="v1", attempt=1)
FAILED = r.SummaryFailed(call_id="v1", attempt=1, error=Failure("OOPS", "it broke"))


def compacted(**fields: Any) -> AnyRecord:
    return r.CompactionCompleted(before=9, tokens=3, **fields)


def rewound(until: int = 7, to: str = "t1") -> AnyRecord:
    return r.ContextRewound(to=to, until=until)


def findings(records: Sequence[AnyRecord]) -> list[str]:
    log = SessionLog("ses_1")
    for entry in Log(*records).entries:
        log.add(entry)
    return [finding.code for finding in log.findings]


@pytest.mark.parametrize(
    "records",
    [
        (*OVER, compacted(until=6, keep=(3,), text="So far.")),
        (*OVER, compacted(shortened={3: "h…o"})),
        (*CALLED, compacted(results={"t1.s1.c1": "cleared"})),
        (*CALLED, STEP_OVER, compacted(until=6, keep=(3,), text="So far.")),
        (*OVER, BEGUN, compacted(until=6, keep=(3,), text="So far.", call_id="v1")),
        (*OVER, BEGUN, r.SummaryStarted(call_id="v1", attempt=2), compacted()),
        (*OVER, BEGUN, FAILED, compacted()),
        (*OVER, r.SummaryFailed(call_id="v1", attempt=1, error=FAILED.error, asked=False)),
        (*OVER, ASKS, rewound(), settles("d9", turn="")),
    ],
)
def test_what_the_model_sees_is_sound(records: Sequence[AnyRecord]) -> None:
    assert findings(records) == []


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ((*OVER, compacted(until=99, keep=(3,), text="So far.")), "WRONG_CONTEXT"),
        ((*OVER, compacted(until=7, keep=(3,), text="So far.")), "WRONG_CONTEXT"),
        ((*OVER, compacted(until=6, keep=(2, 3), text="So far.")), "WRONG_CONTEXT"),
        ((*OVER, compacted(until=6, keep=(5, 3), text="So far.")), "WRONG_CONTEXT"),
        ((*OVER, compacted(until=6, keep=(3, 6), text="So far.")), "WRONG_CONTEXT"),
        ((*OVER, compacted(until=6, text="So far.")), "WRONG_CONTEXT"),
        ((*OVER, compacted(shortened={4: "h…o"})), "WRONG_CONTEXT"),
        ((*CALLED, compacted(until=6, keep=(3,), text="So far.")), "WRONG_CONTEXT"),
        ((*OVER, compacted(until=6, keep=(3,))), "TEXT_MISSING"),
        ((*CALLED, compacted(results={"t1.s1.c7": "cleared"})), "UNKNOWN_CALL"),
        ((*CALLED[:-1], compacted()), "CALL_LEFT_OPEN"),
        ((message(), *turn_begins(), compacted()), "CALL_LEFT_OPEN"),
        ((*OVER, compacted(until=6, keep=(3,), text="So far.", call_id="v1")), "NOT_STARTED"),
        ((*OVER, BEGUN, FAILED, compacted(call_id="v1")), "NOT_STARTED"),
        ((*OVER, r.SummaryStarted(call_id="v1", attempt=2)), "ATTEMPT_OUT_OF_ORDER"),
        ((*OVER, BEGUN, FAILED, r.SummaryStarted(call_id="v1", attempt=2)), "SECOND_OUTCOME"),
        ((*OVER, FAILED), "ATTEMPT_OUT_OF_ORDER"),
        ((*OVER, ASKS, rewound(6)), "WRONG_CONTEXT"),
        ((*OVER, ASKS, rewound(to="t7")), "UNKNOWN_TURN"),
        ((*OVER, rewound()), "UNKNOWN_DELIVERY"),
        ((*OVER, message("d2"), *turn_begins(2, "d2"), ASKS, rewound()), "TURN_LEFT_OPEN"),
        (
            (*OVER, r.ContextChangeRefused(delivery_id="d8", error=FAILED.error)),
            "UNKNOWN_DELIVERY",
        ),
        ((*OVER, ASKS, r.SessionWaiting(wait=("message",), since=1)), "LEFT_UNSETTLED"),
    ],
)
def test_what_the_model_cannot_see_is_told(records: Sequence[AnyRecord], code: str) -> None:
    assert code in findings(records)
