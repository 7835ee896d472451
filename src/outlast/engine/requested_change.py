"""Takes what others asked of a lane: a change of its session's state, a view that goes back.

Only a lane's owner writes to it (promise 6). So the app, the server and the client send a delivery,
and the owner makes the change here, or records why it cannot be made. A compaction that was asked
for is a call: `lane_call.py`.
"""

from functools import partial

from outlast.core import record as r
from outlast.core.action import ChangeContext
from outlast.core.compaction import TURN_UNKNOWN, refused, rewound
from outlast.core.message import storable
from outlast.core.record import AnyRecord, Failure
from outlast.core.slice import Slices
from outlast.core.state_change import REFUSED_CHANGES, change_made, change_refused, rekeyed
from outlast.engine.executor import Executor
from outlast.engine.lane_call import LaneCalls
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.start_gate import StartGate
from outlast.errors import NotEncodable, OutlastError
from outlast.log_context import get_logger

log = get_logger("outlast.engine")

NOT_READ = Failure("WORKERS_LOST", "this lane took its workers down, and is not read any more")
"""Why nothing changes the state of a lane of which only the outline was read, if it may go on."""


class ChangeImpossible(Exception):
    """A change of state that was asked for from outside cannot be made, for an error."""

    def __init__(self, error: Failure) -> None:
        super().__init__(error.message)
        self.error = error


class RequestedChanges:
    """Makes the changes that were asked for from outside of one lane.

    `arrivals` is how many deliveries the lane had when a change was decided upon; a change returns
    False where more have come, so that it is decided anew.
    """

    def __init__(
        self, lane: OwnedLane, executor: Executor, gate: StartGate, calls: LaneCalls
    ) -> None:
        self._lane = lane
        self._executor = executor
        self._gate = gate
        self._calls = calls

    async def change_context(self, action: ChangeContext, arrivals: int) -> bool:
        """Take the view back behind a turn, or record why that cannot be.

        Its places in the log are known to the view alone. A compaction that is under way is one of
        the view as it was.
        """
        change = action.change
        # The view of a lane that is too large is not read.
        if error := self._gate.find_block() or action.error:
            self._lane.write([*refused(change, error)])
            return True
        await self._lane.flush()
        until = (await self._lane.folds.view()).end_of(change.turn)
        if until is None:
            self._lane.write([*refused(change, TURN_UNKNOWN)])
            return True
        past = await self._lane.folds.view_at(until)
        # Not before the view is read: until then the change may come to nothing.
        await self._calls.drop_compaction()
        if arrivals != self._lane.folds.arrivals:
            return False
        self._lane.write([*rewound(change, until, past)])
        await self._lane.flush()  # the view is read from the log anew
        return True

    async def change_state(self, change: r.StateChangeRequested, arrivals: int) -> bool:
        """Change the session's state as was asked for, or record why that cannot be."""
        if self._lane.folds.is_outline:  # which has no slices
            self._lane.write(change_refused(change, self._gate.find_block() or NOT_READ))
            return True
        try:
            refused = await self._lane.attempt(partial(self._changed, change), arrivals)
        except ChangeImpossible as why:
            self._lane.write(change_refused(change, why.error))
            return True
        # Refused, not raised: a change that cannot be made must not stand in the lane's way for
        # ever.
        except NotEncodable as error:
            self._lane.write(change_refused(change, Failure(error.code, error.message)))
            return True
        if refused and refused.reason in REFUSED_CHANGES:
            self._lane.write(change_refused(change, REFUSED_CHANGES[refused.reason]))
        return not refused

    def _changed(self, change: r.StateChangeRequested, slices: Slices) -> list[AnyRecord]:
        if change.op == "rekey":
            return change_made(change, [rekeyed(change)])
        try:
            return change_made(change, self._executor.change_state(change, slices))
        except OutlastError as error:
            raise ChangeImpossible(Failure(error.code, storable(error.message))) from error
        except Exception as error:
            log.exception("a reducer failed; the change of state is refused")
            what = storable(f"a reducer raised {type(error).__name__}: {error}")
            raise ChangeImpossible(Failure("REDUCER_FAILED", what)) from error
