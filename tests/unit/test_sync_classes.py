"""`outlast.sync` stands for all of the async API, with the same signatures."""

from sync_classes import BRIDGED, FILE, LEFT_OUT, generate

from outlast import sync


def test_the_sync_classes_are_those_that_the_async_ones_give() -> None:
    assert FILE.read_text("utf-8") == generate(), "the async classes have changed: run `make sync`"


def test_every_public_method_has_a_twin() -> None:
    for original in BRIDGED:
        twin = getattr(sync, f"Sync{original.__name__}")
        public = {name for name in vars(original) if not name.startswith("_")}
        assert public - set(dir(twin)) <= LEFT_OUT.get(original, set())
