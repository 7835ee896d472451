from __future__ import annotations

import json

import pytest
from fastapi.exceptions import RequestValidationError

from outlast import errors
from outlast.errors import OutlastError
from outlast.server.error import ErrorResponse, refusal_of, refusal_of_validation

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OutlastError)
]
SECRET = "postgresql://outlast:hunter2@db/outlast"


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_status_and_keeps_its_code(kind: type[OutlastError]) -> None:
    refusal = refusal_of(kind("no"))

    assert 400 <= refusal.status_code <= 503
    assert refusal.code == kind.code
    assert ("Retry-After" in (refusal.headers or {})) == (refusal.status_code in (429, 503))


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.InvalidInput, 422),
        (errors.InvalidName, 422),
        (errors.UnknownSession, 404),
        (errors.UnknownCallback, 410),
        (errors.MessageTooLarge, 413),
        (errors.CursorAhead, 410),
        (errors.Conflict, 409),
        (errors.NoActiveSession, 409),
        (errors.SessionErased, 409),
        (errors.QueueFull, 429),
        (errors.StoreUnavailable, 503),
        (errors.StoreFull, 503),
        (errors.StoreCorrupt, 500),
        (errors.UsedAfterFork, 500),
        (errors.InvalidDefinition, 500),
    ],
)
def test_errors_have_the_status_that_says_whose_fault_it_is(
    kind: type[OutlastError], status: int
) -> None:
    assert refusal_of(kind("no")).status_code == status


@pytest.mark.parametrize("kind", [k for k in KINDS if issubclass(k, errors.StoreError)])
def test_nothing_about_the_store_is_told(kind: type[OutlastError]) -> None:
    body = bytes(refusal_of(kind(SECRET, path=SECRET)).response().body)

    assert b"hunter2" not in body


def test_another_server_that_is_away_is_not_told_as_the_store() -> None:
    error = errors.Unreachable("10.0.0.5 did not answer")

    body = json.loads(bytes(refusal_of(error).response().body))["error"]

    assert body["message"].startswith("another server")
    assert "10.0.0.5" not in body["message"]
    assert body["hint"]


def test_what_is_the_callers_own_is_told_with_its_facts() -> None:
    error = errors.QueueFull("the queue is full", session="ses_1", most=3, path=SECRET_PATH)

    body = json.loads(bytes(refusal_of(error).response().body))["error"]

    assert body["message"] == "the queue is full"
    assert body["details"] == {"session": "ses_1", "most": 3, "path": "/tmp/x"}  # noqa: S108
    assert body["hint"]


class Path:
    def __str__(self) -> str:
        return "/tmp/x"  # noqa: S108


SECRET_PATH = Path()


def test_of_many_problems_some_are_told_and_no_input() -> None:
    found = [
        {"loc": ("body", "items", n), "msg": "no", "input": "hunter2", "type": "x"}
        for n in range(1000)
    ]

    refusal = refusal_of_validation(RequestValidationError(found))

    assert len(refusal.details["problems"]) == 20
    assert refusal.detail == "the request does not fit: body.items.0: no, and 999 more"
    assert "hunter2" not in str(refusal.details)


def test_of_a_name_that_was_sent_only_the_beginning_is_repeated_and_all_of_that_is_seen() -> None:
    found = [
        {"loc": ("body", "\u202e" + "x" * 10_000), "msg": "n\u202eo " + "y" * 10_000, "type": "x"}
    ]

    problem = refusal_of_validation(RequestValidationError(found)).details["problems"][0]

    assert problem["at"].startswith("body.\\u202exxx")
    assert problem["problem"].startswith("n\\u202eo yyy")
    assert len(problem["at"]) + len(problem["problem"]) < 1000


def test_a_refusal_says_the_same_in_every_case() -> None:
    body = json.loads(bytes(ErrorResponse(404, "A", "b", c=1).response().body))

    assert body == {"error": {"code": "A", "message": "b", "hint": "", "details": {"c": 1}}}
