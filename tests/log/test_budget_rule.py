"""What `verify` finds wrong with what calls reserve of budgets and return."""

from collections.abc import Sequence

import pytest
from unit.history import Log, answers, message, settles, turn_begins, turn_completes

from outlast.core import record as r
from outlast.core.amount import NOTHING, Amounts, BudgetHold, BudgetKey
from outlast.core.record import AnyRecord
from outlast.log.verify.log import SessionLog

AMOUNTS = Amounts(tokens=100, model_calls=1)
KEY = BudgetKey("session", "ses_1")
RETURNED = r.BudgetCharged(
    call_id="v1", budgets=(KEY,), reserved=NOTHING - AMOUNTS, spent=Amounts(tokens=60)
)
OVER = (
    message(),
    *turn_begins(),
    answers(),
    r.StepCompleted(turn="t1", step=1),
    turn_completes(),
    settles(),
)
BEGUN = r.SummaryStarted(call_id="v1", attempt=1)
RESTS = r.SessionWaiting(wait=("message",), since=1)
COMPACTED = r.CompactionCompleted(before=9, tokens=3)


def held(call_id: str = "v1", amounts: Amounts = AMOUNTS) -> AnyRecord:
    hold = BudgetHold(AMOUNTS, "", (KEY,), 50)
    return r.BudgetCharged(call_id=call_id, budgets=(KEY,), reserved=amounts, hold=hold)


def findings(records: Sequence[AnyRecord]) -> list[str]:
    log = SessionLog("ses_1")
    for entry in Log(*records).entries:
        log.add(entry)
    return [finding.code for finding in log.findings]


@pytest.mark.parametrize(
    "records",
    [
        (*OVER, BEGUN, held(), RETURNED, COMPACTED, RESTS),
        (*OVER, held("req_of_a_child"), RESTS),
    ],
    ids=["a summary", "a child that is at work"],
)
def test_what_comes_back_is_sound(records: Sequence[AnyRecord]) -> None:
    assert findings(records) == []


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ((*OVER, BEGUN, held(), held()), "RESERVED_TWICE"),
        ((*OVER, BEGUN, held(amounts=Amounts(tokens=1))), "RESERVED_TWICE"),
        ((*OVER, BEGUN, RETURNED), "NOT_RESERVED"),
        ((*OVER, BEGUN, held(), RETURNED, RETURNED), "NOT_RESERVED"),
        ((*OVER, BEGUN, held(), COMPACTED, RESTS), "LEFT_RESERVED"),
        ((*OVER, BEGUN, held(), r.SessionCompleted(turn="t1")), "LEFT_RESERVED"),
    ],
)
def test_what_does_not_add_up_is_told(records: Sequence[AnyRecord], code: str) -> None:
    assert code in findings(records)
