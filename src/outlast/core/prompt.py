"""Rendered prompts in the log: when one is recorded, and how its texts are found again.

Owns what is written down of a prompt that was made of sections. It is recorded with the outcome of
the first call that it was used for, and again when it is another; of its texts only those that the
record before it does not have. Rendering is users' code, run by the worker (`agents/prompt`).
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.lane import Lane, ModelCall

DIGEST_DIGITS = 32


def section_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def prompt_digest(sections: Iterable[r.PromptSection]) -> str:
    """Return what tells a whole prompt from another."""
    parts = "\n".join(f"{each.key} {each.digest} {each.tail}" for each in sections)
    return section_digest(parts)


def prompt_rendered(
    lane: Lane, model: ModelCall, sections: tuple[r.PromptSection, ...]
) -> Iterator[r.AnyRecord]:
    """Record the prompt of a model call, if it is another than the last that was recorded."""
    # Most calls have the prompt of the one before: the log has each once.
    if (digest := prompt_digest(sections)) == lane.prompt.digest:
        return
    known = lane.prompt.texts
    yield r.PromptRendered(
        call_id=model.call_id,
        attempt=model.attempt,
        digest=digest,
        sections=tuple(
            # Every text is stored once: a section that has not changed is known by its digest.
            replace(each, text="") if each.digest in known else each
            for each in sections
        ),
    )


def whole_sections(
    record: r.PromptRendered, before: Mapping[str, str]
) -> tuple[r.PromptSection, ...]:
    """Return the sections with their texts; `before` has those of the record before, by digest."""
    return tuple(
        each if each.text else replace(each, text=before[each.digest]) for each in record.sections
    )
