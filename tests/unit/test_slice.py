"""How changes of slices are written down, and folded."""

from hypothesis import given
from hypothesis import strategies as st

from outlast.core.record import SliceValue, StateChanged
from outlast.core.slice import EMPTY, KeptSlice, Slices, change, rolled_back, splices, values_of

texts = st.lists(st.sampled_from("abcdef"), max_size=8)


def slices_of(before: list[str]) -> Slices:
    return {"x": KeptSlice(tuple(SliceValue(text) for text in before))}


@given(texts, texts)
def test_splices_make_one_list_of_the_other(before: list[str], after: list[str]) -> None:
    slices = slices_of(before)
    for splice in splices(before, after):
        record = StateChanged(
            slice="x", op="splice", at=splice.at, drop=splice.drop, values=splice.values
        )
        slices = change(slices, record)

    assert [value.text for value in values_of(slices, "x")] == after


def test_a_change_costs_what_has_changed() -> None:
    before = [f"{n}" * 100 for n in range(100)]
    in_place = [*before[:40], "new", *before[41:]]
    to_the_end = [*before[:40], *before[41:], "new"]

    assert [s.values for s in splices(before, in_place)] == [("new",)]
    assert [s.values for s in splices(before, to_the_end)] == [(), ("new",)]
    assert splices(before, before) == []


def test_a_rollback_names_what_it_changes_and_leaves_logs_and_our_own_alone() -> None:
    one, two = (SliceValue("1"),), (SliceValue("2"),)
    now = {
        "same": KeptSlice(one),
        "changed": KeptSlice(one),
        "new": KeptSlice(one),
        "log": KeptSlice(one, log=True),
        "outlast:granted": KeptSlice(one),
    }
    then = {
        "same": KeptSlice(one),
        "changed": KeptSlice(two),
        "gone": KeptSlice(two),
        "log": KeptSlice(two),
        "outlast:granted": KeptSlice(two),
    }

    record = rolled_back(now, then)

    assert record.slices == {"changed": two, "new": (), "gone": two}
    after = change(now, record)
    assert values_of(after, "log") == one
    assert rolled_back(after, then).slices == {}
    assert values_of(change(EMPTY, rolled_back(EMPTY, then)), "gone") == two
