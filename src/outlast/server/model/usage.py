"""Usage over the wire: what models were used for, added up."""

from pydantic import Field

from outlast.server.model.session import A_SUM, UsageSumOut, sum_out
from outlast.server.model.shape import Out, example
from outlast.store import UsageKey, UsageLine

NONE = {**dict.fromkeys(A_SUM, 0), "usd": "0"}
A_LINE = {"key": "support", "own": A_SUM, "remote": NONE, "total": A_SUM}


class UsageLineOut(Out):
    """The usage of one session, agent, model, tenant, principal or day."""

    model_config = example(A_LINE)

    key: str = Field(
        description="What it is of; a day as 2099-01-31, in UTC. Empty: of erased sessions, of"
        " remote agents, whose models are not known, or for nobody in particular."
    )
    own: UsageSumOut = Field(description="Of model calls of this app.")
    remote: UsageSumOut = Field(description="Of agents behind other servers, as these tell it.")
    total: UsageSumOut


class UsagePage(Out):
    """Usage, in the order of its keys."""

    model_config = example({"by": "agent", "lines": [A_LINE], "next_cursor": None})

    by: UsageKey
    lines: list[UsageLineOut]
    next_cursor: str | None = Field(description="Where the next page begins, if there is one.")


def line_out(line: UsageLine) -> UsageLineOut:
    return UsageLineOut(
        key=line.key,
        own=sum_out(line.own),
        remote=sum_out(line.remote),
        total=sum_out(line.total),
    )
