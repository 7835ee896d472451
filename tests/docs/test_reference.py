"""The reference is complete: held against the code that it describes."""

import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import Struct

import outlast
from outlast import Agent, Approval, Limits, ModelOptions, Schedule, Tool, WorkerSettings, errors
from outlast.agents.model.error import MEANINGS, UNFORESEEN
from outlast.core.event import HIDDEN_FIELDS
from outlast.core.record import AnyRecord

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ENVELOPE = ("turn", "step", "call_id", "attempt", "delivery_id")
WORDS = re.compile(r"`([^`]+)`")


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text("utf-8")


def rows(text: str) -> list[list[str]]:
    """Return the cells of a page's tables, without headings and rules."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def described_events() -> dict[str, tuple[list[str], bool]]:
    visible, _, internal = page("events").partition("\n## Internal events\n")
    return {
        WORDS.findall(kind)[0]: (sorted(described_fields(data)), text is internal)
        for text in (visible, internal)
        for kind, _, data in (row for row in rows(text) if len(row) == 3)
    }


def described_fields(data: str) -> list[str]:
    """Return the fields in a cell: each line names some, and may say what they mean."""
    return [name for line in data.split("<br>") for name in WORDS.findall(line.partition(": ")[0])]


def recorded_events() -> dict[str, tuple[list[str], bool]]:
    found = {}
    for kind in get_args(AnyRecord):
        tag = kind.__struct_config__.tag
        fields = [f for f in kind.__struct_fields__ if f not in (*ENVELOPE, *HIDDEN_FIELDS)]
        # The arguments stand in the answer, and readers get them with the request.
        fields += ["args"] if tag == "tool.requested" else []
        found[tag] = (sorted(fields), kind.internal)
    return found


def test_every_record_is_described_with_its_fields() -> None:
    assert described_events() == recorded_events()


def every_error() -> dict[str, str]:
    found = vars(errors).values()
    kinds = [k for k in found if isinstance(k, type) and issubclass(k, errors.OutlastError)]
    return {kind.__name__: kind.code for kind in kinds}


def test_every_error_is_described_with_its_code() -> None:
    described = {
        WORDS.findall(row[0])[0]: WORDS.findall(row[1])[0]
        for row in rows(page("errors").partition("# Failures in the log")[0])
    }
    assert described == every_error()


def test_every_failure_of_a_model_call_is_described_with_its_kind() -> None:
    described = {
        WORDS.findall(row[0])[0]: row[1]
        for row in rows(section(page("errors"), "Failures of a model call"))
    }
    assert described == {
        code: kind for kind, code in (*((k, c) for _, k, c in MEANINGS), UNFORESEEN)
    }


def defaults(function: Any) -> dict[str, str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: shown(p.default) for p in parameters if p.default is not p.empty}


def shown(default: Any) -> str:
    kind = type(default)
    return f"{kind.__name__}()" if isinstance(default, Struct) else repr(default)


@pytest.mark.parametrize(
    ("title", "function"),
    [
        ("Agent", Agent),
        ("ModelOptions", ModelOptions),
        ("Limits", Limits),
        ("Tool", Tool),
        ("Approval", Approval),
        ("Worker", WorkerSettings),
        ("Schedule", Schedule),
    ],
)
def test_every_setting_is_described_with_its_default(title: str, function: Any) -> None:
    described = {
        WORDS.findall(row[0])[0]: WORDS.findall(row[1])[0]
        for row in rows(section(page("settings"), title))
    }
    assert described == defaults(function)


def test_the_page_about_the_package_lists_each_of_its_names_once() -> None:
    entries = re.findall(r"^::: outlast\.(\w+)$", page("api"), re.MULTILINE)
    assert sorted(entries) == sorted(outlast.__all__)
