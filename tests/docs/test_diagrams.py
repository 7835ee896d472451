"""The diagrams show what the code does. `make diagrams` draws them anew."""

from typing import get_args

from diagrams import (
    OFTEN,
    PAGE,
    STATES,
    draw_message,
    draw_rooms,
    drawn,
    drawn_steps,
    walk,
)

from outlast.core.action import AnyAction

TEXT = PAGE.read_text("utf-8")


def test_the_rooms_are_those_of_the_architecture_test() -> None:
    assert drawn(TEXT, "rooms") == draw_rooms()


async def test_a_message_makes_the_commits_that_are_drawn() -> None:
    assert drawn(TEXT, "message") == await draw_message()


def test_every_action_belongs_to_a_state() -> None:
    assert {kind for state in STATES.values() for kind in state.actions} == set(get_args(AnyAction))


def test_the_drawn_steps_between_states_are_those_that_decide_takes() -> None:
    seen = walk()
    steps = drawn_steps(drawn(TEXT, "states"))
    assert steps - set(seen) == set()  # a step that is drawn is taken
    assert {step for step, count in seen.items() if count >= OFTEN} - steps == set()
