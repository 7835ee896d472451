"""Every error that Outlast raises, and nothing else.

    OutlastError
    ├── InvalidInput            what the caller gave cannot be used; nothing was changed
    │   ├── UnknownWorkflow · UnknownRun
    │   ├── UnknownAgent · UnknownSession · UnknownDelivery · UnknownRequest · UnknownLane
    │   ├── UnknownWorker · UnknownKey · UnknownCallback · UnknownSchedule
    │   ├── UnknownQueue · UnknownDeployment
    │   ├── UnknownConnection · UnknownChannel
    │   ├── InvalidMessage · MessageTooLarge · InvalidAnswer · InvalidName
    │   ├── NotEncodable · ResultMismatch · InvalidCursor
    │   ├── InvalidSignature · InvalidUrl (AddressRefused)
    │   ├── HistoryGone         the log has other events at a reader's cursor
    │   │   └── CursorAhead     because the log ends before the cursor
    │   └── InvalidDefinition   an agent, tool or setting that cannot work as written
    │       ├── OutputChanged   a recorded answer does not fit the output type of today
    │       ├── SliceChanged    a stored value does not fit its slice's class of today
    │       ├── RequestChanged  a loop's saved request does not fit its type of today
    │       └── InvalidSkill    a folder that is not a skill
    ├── Conflict                well formed, but not possible now
    │   ├── DispatchConflict · RequestClosed · TokenTaken · NoActiveSession · QueueFull
    │   ├── SessionTooLarge · SessionOver · SessionErased · NothingToRetry
    │   ├── TaskCannotWait · NotAnApprover · BudgetChanged
    │   ├── NotInTransaction · StillWaiting
    │   └── ExecutionIncomplete · ExecutionRunning
    ├── StoreError              the database
    │   ├── StoreFromTheFuture · StoreCorrupt · StoreFull · StoreUnavailable
    │   └── UnsupportedStore · UsedAfterFork · LeaseLost
    ├── Unreachable             a receiver outside gave no answer
    ├── ProviderRefused         a connection's provider refused
    ├── ServerUnavailable       the client found no server that answers
    ├── InvalidServerAnswer     a server's answer is too large or cannot be read
    ├── SessionError            raised by `Result.unwrap()` for a turn that did not succeed
    │   ├── DeadlineExceeded    because its deadline had passed
    │   └── RunError            the same for a run of a workflow
    └── ToolError               raised by tools: a failure that the model sees
        ├── Retry               asks the model to correct its arguments
        ├── InvalidPlan         a planning tool was called with arguments that do not fit
        ├── SubagentError       an agent that a tool asked has failed
        ├── RunFailed           a run that a workflow waits for has failed
        ├── EventTimeout        an event that a workflow waits for has not come in time
        ├── StepError           a step of a tool or a workflow has failed
        │   └── StepInterrupted its outcome is unknown
        └── AuthorizationError  a tool's sign-in was not completed

Each has a stable `code`, its facts in `details`, and a sentence: what happened,
then what to do about it.
"""

from typing import Any, ClassVar


class OutlastError(Exception):
    """The class of all errors of Outlast: a stable `code`, a message, and facts in `details`."""

    code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = str(message)  # the caller may have passed an error object, say
        self.details = details


class InvalidInput(OutlastError):
    """The caller gave something that cannot be used; nothing was changed."""

    code = "INVALID_INPUT"


class UnknownAgent(InvalidInput):
    code = "UNKNOWN_AGENT"


class UnknownWorkflow(InvalidInput):
    code = "UNKNOWN_WORKFLOW"


class UnknownRun(InvalidInput):
    code = "UNKNOWN_RUN"


class UnknownSession(InvalidInput):
    code = "UNKNOWN_SESSION"


class UnknownDelivery(InvalidInput):
    code = "UNKNOWN_DELIVERY"


class UnknownRequest(InvalidInput):
    code = "UNKNOWN_REQUEST"


class UnknownQueue(InvalidInput):
    code = "UNKNOWN_QUEUE"


class UnknownLane(InvalidInput):
    code = "UNKNOWN_LANE"


class UnknownDeployment(InvalidInput):
    code = "UNKNOWN_DEPLOYMENT"


class UnknownWorker(InvalidInput):
    code = "UNKNOWN_WORKER"


class UnknownKey(InvalidInput):
    code = "UNKNOWN_KEY"


class UnknownCallback(InvalidInput):
    code = "UNKNOWN_CALLBACK"


class UnknownSchedule(InvalidInput):
    code = "UNKNOWN_SCHEDULE"


class UnknownConnection(InvalidInput):
    code = "UNKNOWN_CONNECTION"


class UnknownChannel(InvalidInput):
    code = "UNKNOWN_CHANNEL"


class InvalidMessage(InvalidInput):
    code = "INVALID_MESSAGE"


class MessageTooLarge(InvalidMessage):
    code = "MESSAGE_TOO_LARGE"


class InvalidAnswer(InvalidInput):
    code = "INVALID_ANSWER"


class InvalidName(InvalidInput):
    code = "INVALID_NAME"


class NotEncodable(InvalidInput):
    code = "NOT_ENCODABLE"


class ResultMismatch(InvalidInput):
    code = "RESULT_MISMATCH"


class InvalidCursor(InvalidInput):
    code = "INVALID_CURSOR"


class HistoryGone(InvalidInput):
    """The log has something else at that cursor than when it was read; read it from 0."""

    code = "HISTORY_GONE"


class CursorAhead(HistoryGone):
    code = "CURSOR_AHEAD"


class InvalidSignature(InvalidInput):
    code = "INVALID_SIGNATURE"


class InvalidUrl(InvalidInput):
    code = "INVALID_URL"


class AddressRefused(InvalidUrl):
    code = "ADDRESS_REFUSED"


class InvalidDefinition(InvalidInput):
    """An agent, tool or setting that cannot work as written."""

    code = "INVALID_DEFINITION"


class OutputChanged(InvalidDefinition):
    code = "OUTPUT_CHANGED"


class SliceChanged(InvalidDefinition):
    code = "SLICE_CHANGED"


class RequestChanged(InvalidDefinition):
    code = "REQUEST_CHANGED"


class InvalidSkill(InvalidDefinition):
    code = "INVALID_SKILL"


class Conflict(OutlastError):
    """The call is well formed, but not possible now."""

    code = "CONFLICT"


class DispatchConflict(Conflict):
    """The `dispatch_id` was used before for other content."""

    code = "DISPATCH_CONFLICT"


class BudgetChanged(Conflict):
    code = "BUDGET_CHANGED"


class RequestClosed(Conflict):
    """The request was answered, cancelled or superseded, or has expired."""

    code = "REQUEST_CLOSED"


class TokenTaken(Conflict):
    code = "TOKEN_TAKEN"


class NoActiveSession(Conflict):
    """No living session has this continuation token; name an agent to start one."""

    code = "NO_ACTIVE_SESSION"


class QueueFull(Conflict):
    """As many messages wait as may; nothing was written. Send it again later."""

    code = "QUEUE_FULL"


class SessionTooLarge(Conflict):
    code = "SESSION_TOO_LARGE"


class SessionOver(Conflict):
    """The session is completed, failed or ended, and takes no more messages."""

    code = "SESSION_OVER"


class SessionErased(Conflict):
    code = "SESSION_ERASED"


class NothingToRetry(Conflict):
    code = "NOTHING_TO_RETRY"


class TaskCannotWait(Conflict):
    code = "TASK_CANNOT_WAIT"


class NotAnApprover(Conflict):
    """This principal may not answer for the tool, or its code is not here to say so."""

    code = "NOT_AN_APPROVER"


class NotInTransaction(Conflict):
    code = "NOT_IN_TRANSACTION"


class ExecutionIncomplete(Conflict):
    code = "EXECUTION_INCOMPLETE"


class ExecutionRunning(Conflict):
    code = "EXECUTION_RUNNING"


class StoreError(OutlastError):
    """The database."""

    code = "STORE_ERROR"


class StoreFromTheFuture(StoreError):
    """A newer Outlast wrote the store; upgrade this process."""

    code = "STORE_FROM_THE_FUTURE"


class StoreCorrupt(StoreError):
    code = "STORE_CORRUPT"


class StoreFull(StoreError):
    """The disk is full; workers go on when there is room."""

    code = "STORE_FULL"


class StoreUnavailable(StoreError):
    """The database cannot be reached, or is locked; try again later."""

    code = "STORE_UNAVAILABLE"


class UnsupportedStore(StoreError):
    code = "UNSUPPORTED_STORE"


class UsedAfterFork(StoreError):
    code = "USED_AFTER_FORK"


class LeaseLost(StoreError):
    code = "LEASE_LOST"


class Unreachable(OutlastError):
    """A receiver outside gave no answer. Raised by channels: send it again later."""

    code = "UNREACHABLE"


class ProviderRefused(OutlastError):
    code = "PROVIDER_REFUSED"


class ServerUnavailable(OutlastError):
    """No server answered the client, however often it tried."""

    code = "SERVER_UNAVAILABLE"


class InvalidServerAnswer(OutlastError):
    code = "INVALID_SERVER_ANSWER"


class StillWaiting(Conflict):
    """There is no output yet: the turn goes on, or needs a human."""

    code = "STILL_WAITING"


class SessionError(OutlastError):
    """Raised by `Result.unwrap()` for a turn that did not succeed."""

    code = "SESSION_FAILED"


class DeadlineExceeded(SessionError):
    """The deadline of the message or the session had passed."""

    code = "DEADLINE_EXCEEDED"


class RunError(SessionError):
    """Raised by `RunResult.unwrap()` for a run that has errored or was cancelled."""

    code = "RUN_ERROR"


class ToolError(OutlastError):
    """Raise it in a tool: the model sees the message as the call's failure."""

    code = "TOOL_ERROR"


class Retry(ToolError):
    """Raise it in a tool: the model is asked to correct its arguments."""

    code = "RETRY"


class InvalidPlan(ToolError):
    code = "INVALID_PLAN"


class RunFailed(ToolError):
    """A run that a workflow waits for has failed."""

    code = "RUN_FAILED"


class EventTimeout(ToolError):
    """An event that a workflow waits for has not come in time."""

    code = "EVENT_TIMEOUT"


class StepError(ToolError):
    """A step has failed: `code` is that of its own error, and `details["step"]` its name."""

    code = "STEP_FAILED"

    def __init__(self, message: str, code: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        if code:
            self.code = code  # type: ignore[misc]


class StepInterrupted(StepError):
    """A step was cut off: it may or may not have happened."""

    code = "STEP_INTERRUPTED"


class SubagentError(ToolError):
    """An agent that a tool asked has failed."""

    code = "SUBAGENT_FAILED"


class AuthorizationError(ToolError):
    """A sign-in that a tool needs was declined, or not completed in time."""

    code = "AUTHORIZATION_FAILED"
