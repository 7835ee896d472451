"""The sentence that a worker begins with: what was left unfinished, and whether it resumes that.

Owns the words. Knows nothing of claims: `worker.py` says them once, when it starts.
"""

from outlast.store import Store, Unfinished

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


async def read_unfinished(
    store: Store, agents: tuple[str, ...], lanes: tuple[str, ...]
) -> Unfinished:
    """Read what is ready and carried by no living worker, as far as it can be seen from here."""
    living = [info.worker for info in await store.work.workers()]
    return await store.work.find_unfinished(agents, lanes or None, living)


def sentence(found: Unfinished, *, resumes: bool) -> str:
    """Say what a worker that starts will do with what it finds; nothing where there is nothing."""
    count = sum(found.sessions.values())
    if not count or found.oldest_at is None:
        return ""
    number = f"{count:,}" if found.is_whole else f"more than {count:,}"
    by_agent = ", ".join(f"{agent} {some:,}" for agent, some in sorted(found.sessions.items()))
    which = f" ({by_agent})" if len(found.sessions) > 1 else ""
    return (
        f"{'resumes' if resumes else 'leaves'} {number} unfinished"
        f" session{'' if count == 1 else 's'}{which}, oldest {span(found.now - found.oldest_at)}"
    )


def unserved_sentence(found: Unfinished) -> str:
    """Say what is ready and that no worker serves; nothing where there is nothing."""
    if not found.unserved:
        return ""
    each = [f"{count:,} of {agent}" for agent, count in sorted(found.unserved.items())]
    return f"no worker serves what is ready: {', '.join(each)}"


def span(milliseconds: int) -> str:
    """Return a length of time as people say it, in its largest unit."""
    whole = max(0, milliseconds) // 1000
    name, unit = next((each for each in UNITS if whole >= each[1]), UNITS[-1])
    return f"{whole // unit} {name}"
