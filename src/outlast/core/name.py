"""The names of things inside a session: the same log gives the same names.

A turn is `t3`, its second step's model call `t3.s2`, the first tool call of that
step `t3.s2.c1`, and the second attempt at it `t3.s2.c1#2`. The lane's fourth summary is `t3.v4`,
or `v4` if no turn was open. Lanes other than `main` go before: `notes/t3`. A lane may be called
anything, so names are read from their last `/` on. Nothing here is secret.
"""

from hashlib import blake2b, sha256
from typing import Any

import msgspec

from outlast.core.visible import visible_line
from outlast.errors import InvalidName

MAIN = "main"
RECONCILE = "=reconcile"
"""The scope of what finds out about an attempt at a tool; no name that is given can begin so."""
MAX_ID = 256
MAX_ID_BYTES = 512
"""The most bytes of an id in UTF-8: a call's permit stands in an index with five of them, and
PostgreSQL's take no more than 2,704 bytes for an entry."""

KEYED = "agent:"
"""The beginning of the tokens of sessions that have a key; no other token may begin so."""
OF_CHANNEL = "channel:"
"""The prefix of tokens of channels' threads, and of the names of their outbox cursors."""
OF_QUEUE = "queue:"
"""The prefix of the names of queues' limits, and of the tokens of sessions in singletons."""

_plain = msgspec.json.Decoder()
_in_order = msgspec.json.Encoder(order="deterministic")


REQUEST = "req_"
"""The prefix of the names of requests."""


def turn_name(lane: str, number: int) -> str:
    return f"t{number}" if lane == MAIN else f"{lane}/t{number}"


def model_call_name(turn: str, step: int) -> str:
    return f"{turn}.s{step}"


def place_names(turn: str) -> set[str]:
    """Return the names by which a turn asks for its places in a queue: in the fleet, and here."""
    return {turn, place_here(turn)}


def place_here(turn: str) -> str:
    """Name a turn's request for a place in one worker: its first model call is number 1."""
    return model_call_name(turn, 0)


def tool_call_name(model_call: str, number: int) -> str:
    return f"{model_call}.c{number}"


def summary_call_name(lane: str, turn: str, number: int) -> str:
    """Name the model call that sums up what the lane's view leaves out."""
    if turn:
        return f"{turn}.v{number}"
    return f"v{number}" if lane == MAIN else f"{lane}/v{number}"


def is_summary_call(call_id: str) -> bool:
    """Say whether a model call sums up what is left out, and belongs to no step."""
    place = call_id.rpartition("/")[2]
    return place.startswith("v") or ".v" in place


def attempt_name(call_id: str, attempt: int) -> str:
    return f"{call_id}#{attempt}"


def turn_and_step(call_id: str) -> tuple[str, int]:
    """Return the turn and step that a call belongs to; a summary is of no step."""
    lane, slash, place = call_id.rpartition("/")
    turn, _, rest = place.partition(".")
    step, _, _ = rest.partition(".")
    if place.startswith("v"):
        return "", 0  # between turns
    return lane + slash + turn, int(step[1:]) if step.startswith("s") else 0


def is_tool_call(call_id: str) -> bool:
    """Say whether a call is one of a tool, not of the model."""
    return ".c" in call_id.rpartition("/")[2]


def lane_of(turn: str) -> str:
    """Return the lane that a turn belongs to."""
    return turn.rpartition("/")[0] or MAIN


def request_name(session: str, call_id: str, name: str) -> str:
    """Name a request so that it is the same after a crash and unique across sessions."""
    # A digest, since the parts may be long and chosen by users, and the id stands in addresses and
    # indexes.
    return REQUEST + blake2b(f"{session}\n{call_id}\n{name}".encode(), digest_size=13).hexdigest()


def wait_name(scope: str, kind: str, name: str, number: int) -> str:
    """Name a wait or step of a call: its scope, what it is, and how many of these there were.

    `name` is `quoted` where somebody chose it; else it begins with `=`.
    """
    return f"{scope}{kind}:{name}#{number}"


def branch_scope(scope: str, name: str, number: int) -> str:
    """Return the scope of a branch; the names of its waits begin with it, and no others."""
    return f"{scope}{name}#{number}/"


def is_wait(name: str) -> bool:
    """Say whether a name is of a wait, and not of a step or of a branch that came first."""
    return not name.rpartition("/")[2].startswith(NO_WAITS)


CUT_STEP = "/ask:=interrupted#"
"""Within the name of a wait: a human is asked what became of a step that was cut off."""
NO_WAITS = ("step:", "won:", "patched:", "now:", "emit:")
"""How the names begin of what a call has recorded and nobody waits for."""


def quoted(name: str) -> str:
    """Return a name that somebody chose without the characters that mean something in a wait's."""
    for char in "%/#=~:":
        if char in name:
            name = name.replace(char, f"%{ord(char):02X}")
    return name


def callback_name(token: str) -> str:
    """Name the request behind a secret address, without saying the secret."""
    return "cbk_" + sha256(token.encode(errors="surrogatepass")).hexdigest()


def round_token(token: str, rounds: int) -> str:
    """Return what stands for the secret of an address that has been called before, and stays."""
    return token if rounds == 1 else f"{token}#{rounds}"


def authorization_name(state: str) -> str:
    """Name the request behind the `state` of a sign-in, without saying it."""
    return "aut_" + sha256(state.encode(errors="surrogatepass")).hexdigest()


def effect_key(session: str, call_id: str) -> str:
    """Return the idempotency key of a call, the same for all its attempts."""
    return f"{session}:{call_id}"


def check_id(kind: str, value: Any) -> str:
    """Return an id that a user chose, if it can be one."""
    if not is_id(value):
        if isinstance(value, str) and any(is_half(char) for char in value):
            raise InvalidName(
                f"this {kind} has half a character in it (a lone surrogate), which cannot be"
                f" stored: {value[:MAX_ID]!a}"
            )
        if isinstance(value, str) and not is_seen(value):
            raise InvalidName(
                f"this {kind} has a character in it that cannot be seen, such as a line end, a"
                f" control or a zero-width one: leave it out: {visible_line(value[:MAX_ID])!r}"
            )
        raise InvalidName(
            f"a {kind} is a text of 1 to {MAX_ID} characters, and of at most"
            f" {MAX_ID_BYTES} bytes in UTF-8"
        )
    return str.__str__(value)  # plain, whatever kind of text it is: no other can be stored


def is_id(value: Any) -> bool:
    """Whether something can be an id: nothing else needs to be looked for."""
    return isinstance(value, str) and bool(value) and fits(value)


def check_who(kind: str, value: Any) -> str:
    """Return the name of a person or a program; empty if none is given."""
    return "" if isinstance(value, str) and not value else check_id(kind, value)


def check_dispatch(dispatch_id: Any) -> str | None:
    """Return the id that a caller chose for what is sent, if one was chosen."""
    return None if dispatch_id is None else check_id("dispatch_id", dispatch_id)


OWNERS = {KEYED: "an agent", OF_CHANNEL: "a channel", OF_QUEUE: "a queue"}


def check_token(token: Any, reserved: tuple[str, ...] = (KEYED, OF_CHANNEL, OF_QUEUE)) -> str:
    """Return a continuation token that somebody chose, if it can be one and is nobody's own."""
    chosen = check_id("continuation_token", token)
    for start in reserved:
        if chosen.startswith(start):
            owner = OWNERS[start]
            raise InvalidName(f"a continuation token that begins with {start} is {owner}'s own")
    return chosen


def is_storable(text: str) -> bool:
    """Whether every database can keep a text: no NUL, and no halves of characters."""
    return "\0" not in text and not any(is_half(char) for char in text)


def is_half(char: str) -> bool:
    """Whether a character is one of two that stand for one, and that mean nothing alone."""
    return "\ud800" <= char <= "\udfff"


def is_seen(text: str) -> bool:
    """Whether people see all of a name: no line of a log can be forged with it."""
    # Nearly every name is printable ASCII, and needs no look at its characters one by one.
    return (text.isascii() and text.isprintable()) or visible_line(text) == text


def fits(text: str) -> bool:
    """Whether every database can keep and index a text, and every surface can show it."""
    if len(text) > MAX_ID or not is_seen(text):
        return False
    return text.isascii() or len(text.encode()) <= MAX_ID_BYTES


def storable_key(key: str) -> str:
    """Return a key that is made of whatever a model said, as any database can keep and index it."""
    if fits(key):
        return key
    return "sha256:" + sha256(key.encode(errors="surrogatepass")).hexdigest()


def args_digest(tool: str, args: str) -> str:
    """Return a digest of a tool and its exact arguments, whatever the order of their names."""
    try:
        canonical = _in_order.encode(_plain.decode(args))
    except (msgspec.DecodeError, RecursionError):
        # What is no JSON is itself: two such texts are the same only if they are equal.
        canonical = args.encode()
    return sha256(tool.encode() + b"\n" + canonical).hexdigest()[:32]
