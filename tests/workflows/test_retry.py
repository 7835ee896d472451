"""What a run that tries another again has of it beside what that had come to."""

from datetime import timedelta
from pathlib import Path

import pytest
from scene import running

from outlast import Outlast, QueueEntry, Run, Webhook, WebhookSettings, WorkflowContext, workflow
from outlast.core.record import QueuePlace, SessionStarted

SECRET = "s3cret-of-the-caller-and-nobody-else"
HOUR = timedelta(hours=1)


@workflow(queue="of-the-workflow")
async def fails(ctx: WorkflowContext) -> None:
    raise ValueError("not today")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'runs.db'}"


async def started(app: Outlast, run: Run[None]) -> SessionStarted:
    page = await app.store.log.read(run.id, 0, 1)
    found = page.entries[0].record
    assert isinstance(found, SessionStarted)
    return found


async def test_a_retry_stands_in_the_queue_of_its_run_with_the_same_key_and_priority(
    store: str,
) -> None:
    async with running(fails, store=store) as app:
        for name in ("of-the-workflow", "of-the-start"):
            await app.queues.set(name, concurrency=1)
        place = QueueEntry("of-the-start", key="acme", priority=30, delay=0.001)
        run = await app.run(fails, queue=place, tags={"month": "may"}, deadline=HOUR)
        await run.wait()
        again = await run.retry()
        await again.wait()
        third = await again.retry()

        for each in (run, again, third):
            record = await started(app, each)
            assert record.place == QueuePlace("of-the-start", "acme", 30_000)
            assert record.tags == {"month": "may"}
        assert (await started(app, third)).starts_at == 0  # the delay was that of the start


async def test_a_retry_has_as_long_as_its_run_had(store: str) -> None:
    async with running(fails, store=store) as app:
        run = await app.run(fails, deadline=timedelta(milliseconds=30), delay=HOUR)
        late = await run.wait()
        again = await run.retry()
        free = await app.run(fails)
        await free.wait()
        freely = await free.retry()

        assert late.error is not None
        assert late.error.code == "DEADLINE_EXCEEDED"
        first, second = await started(app, run), await started(app, again)
        assert second.deadline_at > first.deadline_at > 0
        assert (await started(app, freely)).deadline_at == 0


async def test_a_retry_is_not_kept_back_by_a_queue_that_was_removed_since(store: str) -> None:
    async with running(fails, store=store) as app:
        await app.queues.set("short-lived")
        run = await app.run(fails, queue="short-lived")
        await run.wait()
        await app.queues.remove("short-lived")

        assert (await (await run.retry()).wait()).status == "errored"


async def test_the_webhook_of_a_run_is_told_of_its_retry_whoever_asks_for_that(store: str) -> None:
    settings = WebhookSettings(secret="another-one-that-is-the-apps-own")
    hook = Webhook("https://shop.example/hook", ["turn.failed"], SECRET)
    async with running(fails, store=store, webhooks=settings) as app:
        run = await app.run(fails, webhook=hook)
        await run.wait()
    # As the command line does: with the store alone, and no code.
    async with Outlast(store=store, worker=None) as outside:
        again = await (await outside.get_run(run.id)).retry(dispatch_id="again")
        twice = await (await outside.get_run(run.id)).retry(dispatch_id="again")
        [cursor] = await outside.store.outbox.cursors(again.id)

        assert (again.duplicate, twice.duplicate) == (False, True)
        assert (cursor.url, cursor.events) == (hook.url, ("turn.failed",))
        assert cursor.secret == SECRET
        assert SECRET not in repr(await started(outside, again))
