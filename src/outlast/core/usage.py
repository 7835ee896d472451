"""Usage of models, added up: of a session and of all below it, and by what it was spent on.

Owns whom a model call is counted for, and the rows that stores keep of `usage.recorded`, which
`outlast verify` builds anew from the log. Refuses to know prices: these are in the record, once
and for all (`agents/model/price.py` finds them).
"""

from collections.abc import Collection, Iterable
from datetime import date
from decimal import Decimal

from msgspec import Struct

from outlast.core import record as r
from outlast.core.lane import Lane

DAY = 24 * 3600 * 1000
MOST_BYTES = 300
"""Of a name in the key of a row: an index of PostgreSQL takes 2,700 bytes in all."""
MOST_BYTES_OF_ID = 512
CENT = Decimal("0.01")
FIRST_DAY = date(1970, 1, 1).toordinal()


class TreeUsage(Struct, frozen=True, gc=False):
    """The `own` usage of a turn or a session, and the `total` of it and all children below it."""

    own: r.UsageSum = r.NO_USAGE
    total: r.UsageSum = r.NO_USAGE


class UsageChange(Struct, frozen=True, gc=False):
    """What a commit adds to the usage of its session, by model, principal and remote agent."""

    model: str
    principal: str
    remote: str
    used: r.UsageSum


class UsageRow(Struct, frozen=True, gc=False):
    """The usage of a session, or of all erased ones, in one of these on a `day` since 1970."""

    tenant: str
    agent: str
    model: str
    principal: str
    remote: str
    day: int
    used: r.UsageSum


def payer(lane: Lane) -> str:
    """Return the principal whom the open turn's model calls are counted for.

    That is who sent the message that it began with; a child's is that of its parent's turn.
    """
    if lane.turn and lane.turn.senders:
        return lane.turn.senders[0]
    return (lane.parent.payer if lane.parent else "") or lane.principal


def next_payer(lane: Lane, delivery: str, *, retries: bool = False) -> str:
    """Return whom the calls of the turn are counted for that a delivery is about to begin.

    One that `retries` a turn is for whoever sent the message of that.
    """
    before = lane.last.senders if lane.last and retries else ()
    sent = (queued.principal for queued in lane.queue if queued.delivery_id == delivery)
    return next((who for who in (*before, *sent) if who), "") or payer(lane)


def used_by(e: r.UsageRecorded) -> r.UsageSum:
    """Return a record's usage as a sum."""
    return r.UsageSum(
        e.input_tokens,
        e.output_tokens,
        e.cache_read_tokens,
        e.cache_write_tokens,
        e.model_calls,
        e.unpriced_calls,
        e.nano_usd,
    )


def usage_with_children(lane: Lane) -> r.UsageSum:
    """Return what a lane has used so far, with the children that have told it what they used."""
    of_turn = lane.turn.below if lane.turn else r.NO_USAGE
    return lane.usage + lane.below + of_turn


def usage_of(records: Collection[r.AnyRecord]) -> tuple[UsageChange, ...]:
    """Return what records add to the usage of their session; nothing, as with most."""
    if r.UsageRecorded not in map(type, records):
        return ()
    changes = [change_of(e) for e in records if type(e) is r.UsageRecorded]
    return (changes[0],) if len(changes) == 1 else tuple(_by_key(changes))


def change_of(e: r.UsageRecorded) -> UsageChange:
    return UsageChange(
        clipped(e.model), clipped(e.principal, MOST_BYTES_OF_ID), clipped(e.remote), used_by(e)
    )


def _by_key(changes: Iterable[UsageChange]) -> Iterable[UsageChange]:
    sums: dict[tuple[str, str, str], r.UsageSum] = {}
    for each in changes:
        key = each.model, each.principal, each.remote
        sums[key] = sums.get(key, r.NO_USAGE) + each.used
    return [UsageChange(*key, used) for key, used in sums.items()]


def clipped(name: str, most: int = MOST_BYTES) -> str:
    """Return a name as a key has it: short, and without what no database takes."""
    # The usual name is not copied.
    if name.isascii() and len(name) <= most and "\0" not in name:
        return name
    # Cut in bytes, as an index counts, and not in the middle of a character.
    return name.replace("\0", "").encode(errors="ignore")[:most].decode(errors="ignore")


def day_of(instant: int) -> int:
    """Return the day in UTC of an instant in milliseconds, as rows have it."""
    return instant // DAY


def date_of_day(day: int) -> date:
    return date.fromordinal(FIRST_DAY + day)


def day_number(day: date) -> int:
    return day.toordinal() - FIRST_DAY


def in_figures(used: r.UsageSum) -> str:
    """Say what was used, for people: "812 tokens in, 97 out, 2 calls, $0.0028"."""
    calls = f"{used.model_calls:,} call{'' if used.model_calls == 1 else 's'}"
    return f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out, {calls}, {dollars(used)}"


def dollars(used: r.UsageSum) -> str:
    """Return what calls have cost; those without a known price are told, and are no zero."""
    known = f"${used.usd:,.4f}" if used.usd >= CENT or not used.nano_usd else f"${used.usd:.6f}"
    if not used.unpriced_calls:
        return known
    unknown = f"{used.unpriced_calls:,} of unknown price"
    return unknown if used.unpriced_calls == used.model_calls else f"{known} and {unknown}"
