"""Plans what is left out of a view so that the model's next request is short enough.

Pure: of a view, a policy and what the session has loaded it makes the facts of one record. Each
step goes as far as needed and no further; what is told in the place of something says how to read
it, where the agent has the tool for that.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from outlast.agents.context.policy import ContextPolicy
from outlast.core.compaction import BYTES_PER_TOKEN, bytes_of
from outlast.core.message import (
    Message,
    ModelAnswer,
    ToolCall,
    ToolOutput,
    ToolOutputs,
    UserMessage,
    text_of,
)
from outlast.core.result import Compacted
from outlast.core.view import View

TO_READ = ' Call {tool} with reference="{reference}" for all of it.'
READ_RESULT = "read_result"
CUT = "\n[… {left:,} characters are left out here.{how} …]\n"
CLEARED = "[This result of {size:,} characters was cleared to save space.{how}]"
SUPERSEDED = "[This result was dropped: the same was read again later.{how}]"
LEFT_OUT = "[{count:,} earlier messages of this conversation were left out to save space.]"
SUMMED_UP = "[Earlier messages of this conversation were left out. A summary of them:]\n\n{summary}"
SHORT = 400
"""Results of so few characters are not worth clearing."""
OF_SUMMARIES = 0.25
"""The share of what is left that earlier summaries may have before they are summed up again."""

Resources = Callable[[ToolCall], frozenset[str]]
"""Returns the resources that a call read."""


class Planned(Struct):
    """What is left out so far, and the sizes that it comes to, in tokens."""

    messages: list[tuple[Message, int]]
    sizes: list[float]
    results: dict[str, str]
    shortened: dict[int, str]
    until: int = 0
    keep: tuple[int, ...] = ()
    left_out: tuple[Message, ...] = ()

    @property
    def size(self) -> float:
        return sum(self.sizes)


class CompactionPlanner:
    """Plans one compaction of a view that has about so many tokens."""

    def __init__(
        self,
        view: View,
        policy: ContextPolicy,
        tokens: int,
        *,
        pinned: frozenset[str],
        reads: Resources,
        is_readable: bool,
    ) -> None:
        self._view = view
        self._policy = policy
        self._pinned = pinned
        self._reads = reads
        self._is_readable = is_readable
        messages = [*zip(view.messages, view.offsets, strict=True)]
        sizes = [bytes_of(message) / BYTES_PER_TOKEN + 4 for message, _ in messages]
        self._pending = sum(len(result.text) for result in view.pending) / BYTES_PER_TOKEN
        known = sum(sizes) + self._pending
        # The count of the provider also has the instructions and tools, which nothing shortens.
        self._scale = max(1.0, tokens / known) if known and tokens else 1.0
        self.plan = Planned(messages, [size * self._scale for size in sizes], {}, {})

    @property
    def size(self) -> float:
        """About how many tokens the request would have now."""
        return self.plan.size + self._pending * self._scale

    # The steps

    def cap_results(self, longest: int) -> None:
        """Tell results that are too long by their beginning and their end."""
        for result in self._view.pending:
            if len(result.text) > longest and result.call_id not in self._pinned:
                short = self._shortened(result.text, longest // 4, result)
                self.plan.results[result.call_id] = short
                self._pending -= (len(result.text) - len(short)) / BYTES_PER_TOKEN
        for place, result in self._results():
            if len(result.text) > longest:
                self._replace(place, result, self._shortened(result.text, longest // 4, result))

    def drop_superseded(self) -> None:
        """Drop the results of what was read again later."""
        read_later: set[str] = set()
        calls = {
            part.call_id: part
            for message, _ in self.plan.messages
            if isinstance(message, ModelAnswer)
            for part in message.parts
            if isinstance(part, ToolCall)
        }
        # From the newest back: only what is read later makes an older result superfluous.
        for place, result in reversed([*self._results()]):
            call = calls.get(result.call_id)
            read = self._reads(call) if call and not result.failed else frozenset()
            if read and read <= read_later and len(result.text) > len(SUPERSEDED):
                self._replace(place, result, SUPERSEDED.format(how=self._how(result)))
            read_later |= read

    def clear_results(self, target: float, keep: int) -> None:
        """Clear results, the oldest first, until the rest is short enough."""
        found = [*self._results()]
        for place, result in found[: max(0, len(found) - keep)]:
            if self.size <= target:
                return
            size = len(self.plan.results.get(result.call_id, result.text))
            if size > SHORT:
                self._replace(
                    place, result, CLEARED.format(size=len(result.text), how=self._how(result))
                )

    def cut(self, target: float) -> None:
        """Leave the oldest messages out, but for those that must not be lost."""
        plan, keep = self.plan, self._kept()
        settled = len(plan.messages) - self._view.unsettled
        size, place = self.size, 0
        kept_summaries = self._summaries(target)
        while place < settled and size > target:
            offset = plan.messages[place][1]
            end = place
            while end < len(plan.messages) and plan.messages[end][1] == offset:
                end += 1  # an answer and the results that it asked for
            # A partial answer may still become one with what goes on from it.
            if end > settled:
                break
            if offset not in keep and offset not in kept_summaries:
                size -= sum(plan.sizes[place:end])
            place = end
        gone_offsets = {offset for _, offset in plan.messages[:place]} - keep - kept_summaries
        if not gone_offsets:
            return
        # A summary is younger than what stands behind it, so that is named as well.
        plan.until = max(gone_offsets)
        seen = {offset for _, offset in plan.messages if offset <= plan.until}
        plan.keep = tuple(sorted(seen - gone_offsets))
        gone = [n for n, (_, o) in enumerate(plan.messages) if o in gone_offsets]
        plan.left_out = tuple(plan.messages[n][0] for n in gone)
        left = [n for n in range(len(plan.messages)) if n not in {*gone}]
        plan.sizes = [plan.sizes[n] for n in left]
        plan.messages = [plan.messages[n] for n in left]

    def shorten_messages(self, target: float) -> None:
        """Tell users' messages by their beginning and end where nothing else helps any more."""
        for place, (message, offset) in enumerate(self.plan.messages):
            if isinstance(message, UserMessage) and self.size > target:
                text = text_of(message.content)
                most = max(SHORT, int(target * BYTES_PER_TOKEN / 4))
                if len(text) > most:
                    short = self._shortened(text, most // 2)
                    self.plan.shortened[offset] = short
                    self.plan.sizes[place] = len(short) / BYTES_PER_TOKEN * self._scale

    def record(self, text: str = "") -> Compacted:
        plan = self.plan
        tokens = int(self.size + len(text) / BYTES_PER_TOKEN * self._scale)
        return Compacted(tokens, plan.until, plan.keep, text, plan.results, plan.shortened)

    # Parts of them

    def _results(self) -> Iterator[tuple[int, ToolOutput]]:
        """Yield the results that are told and may be changed, with the place of their message."""
        for place, (message, _) in enumerate(self.plan.messages):
            if isinstance(message, ToolOutputs):
                for result in message.results:
                    if result.call_id not in self._pinned:
                        yield place, result

    def _replace(self, place: int, result: ToolOutput, text: str) -> None:
        before = self.plan.results.get(result.call_id, result.text)
        if text == before:  # so it is told since an earlier compaction
            return
        self.plan.results[result.call_id] = text
        self.plan.sizes[place] -= (len(before) - len(text)) / BYTES_PER_TOKEN * self._scale

    def _shortened(self, text: str, each: int, result: ToolOutput | None = None) -> str:
        how = self._how(result) if result else ""
        # With what is said of the rest it has twice as much at most, so it is not cut again.
        about = len(CUT.format(left=len(text), how=how))
        each = max(0, min(each, (4 * each - about) // 2))
        left = len(text) - 2 * each
        return text[:each] + CUT.format(left=left, how=how) + text[len(text) - each :]

    def _how(self, result: ToolOutput) -> str:
        offset = self._view.result_offsets.get(result.call_id)
        if not (self._is_readable and offset):
            return ""
        return TO_READ.format(tool=READ_RESULT, reference=offset)

    def _kept(self) -> set[int]:
        """Return the offsets of what must not be lost: the first message, the open turn's, skills.

        And the answer whose results are told next: providers refuse results without their calls.
        What is open besides, such as an approval, belongs to a step that is not over.
        """
        view = self._view
        first = next((o for m, o in self.plan.messages if isinstance(m, UserMessage)), 0)
        return {first, view.open_answer, *view.began, *view.offsets_of(self._pinned)}

    def _summaries(self, target: float) -> set[int]:
        """Return the offsets of earlier summaries, if they are short enough to stay as they are."""
        found = [n for n, (_, o) in enumerate(self.plan.messages) if o in self._view.summaries]
        size = sum(self.plan.sizes[n] for n in found)
        if size > target * OF_SUMMARIES:
            return set()
        return {self.plan.messages[n][1] for n in found}


def told_instead(plan: Planned, summary: str) -> str:
    """Return what stands in the place of the messages that are left out."""
    if not plan.left_out:
        return ""
    if summary:
        return SUMMED_UP.format(summary=summary)
    return LEFT_OUT.format(count=len(plan.left_out))


def as_text(messages: tuple[Message, ...], most: int) -> str:
    """Return messages as a text to be summed up; long results by their beginning."""
    parts: list[str] = []
    for message in messages:
        match message:
            case UserMessage():
                parts.append(f"User: {text_of(message.content)}")
            case ToolOutputs():
                parts += [f"Result of {each.tool}: {each.text[:2_000]}" for each in message.results]
            case _:
                parts += [said(part) for part in message.parts]
    text = "\n".join(filter(None, parts))
    return text if len(text) <= most else text[: most // 2] + "\n[…]\n" + text[-most // 2 :]


def said(part: Any) -> str:
    if isinstance(part, ToolCall):
        return f"Assistant calls {part.tool}({part.args[:500]})"
    return f"Assistant: {part.text}" if getattr(part, "text", "") else ""
