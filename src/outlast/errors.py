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
    │   ├── HistoryGone         a reader's cursor is of a log that is not there any more
    │   │   └── CursorAhead     because the log ends before it
    │   └── InvalidDefinition   an agent, tool or setting that cannot work as written
    │       ├── OutputChanged   what was answered is not of the output type of today
    │       ├── SliceChanged    what a slice keeps is not of its class of today
    │       ├── RequestChanged  what a loop was asked for is not of its type of today
    │       └── InvalidSkill    a folder that is no skill of an agent
    ├── Conflict                well formed, but not now
    │   ├── DispatchConflict · RequestClosed · TokenTaken · NoActiveSession · QueueFull
    │   ├── SessionTooLarge · SessionOver · SessionErased · NothingToRetry
    │   ├── TaskCannotWait · NotAnApprover · BudgetChanged
    │   ├── NotInTransaction · StillWaiting
    │   └── ExecutionIncomplete · ExecutionRunning
    ├── StoreError              the database
    │   ├── StoreFromTheFuture · StoreCorrupt · StoreFull · StoreUnavailable
    │   └── UnsupportedStore · UsedAfterFork · LeaseLost
    ├── Unreachable             a receiver outside gave no answer
    ├── ProviderRefused         a connection's provider said no
    ├── ServerUnavailable       the client found no server that answers
    ├── InvalidServerAnswer     a server answered with more, or with something else, than is taken
    ├── SessionError            raised by `Result.unwrap()` for a turn that did not succeed
    │   ├── DeadlineExceeded    because its deadline had passed
    │   └── RunError            the same for a run of a workflow
    └── ToolError               raised by tools: a failure that the model sees
        ├── Retry               asks the model to correct its arguments
        ├── InvalidPlan         a planning tool was called with what no plan can become
        ├── SubagentError       an agent that a tool asked has failed
        ├── RunFailed           a run that a workflow waits for has failed
        ├── EventTimeout        an event that a workflow waits for has not come in time
        ├── StepError           a step of a tool or a workflow has failed
        │   └── StepInterrupted nobody knows what became of it
        └── AuthorizationError  a tool's sign-in was not completed

Each has a stable `code`, its facts in `details`, and a sentence: what happened,
then what to do about it.
"""

from typing import Any, ClassVar


class OutlastError(Exception):
    """Something that Outlast can name went wrong."""

    code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = str(message)  # the caller may have passed an error object, say
        self.details = details


class InvalidInput(OutlastError):
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
    code = "CONFLICT"


class DispatchConflict(Conflict):
    code = "DISPATCH_CONFLICT"


class BudgetChanged(Conflict):
    code = "BUDGET_CHANGED"


class RequestClosed(Conflict):
    code = "REQUEST_CLOSED"


class TokenTaken(Conflict):
    code = "TOKEN_TAKEN"


class NoActiveSession(Conflict):
    code = "NO_ACTIVE_SESSION"


class QueueFull(Conflict):
    code = "QUEUE_FULL"


class SessionTooLarge(Conflict):
    code = "SESSION_TOO_LARGE"


class SessionOver(Conflict):
    code = "SESSION_OVER"


class SessionErased(Conflict):
    code = "SESSION_ERASED"


class NothingToRetry(Conflict):
    code = "NOTHING_TO_RETRY"


class TaskCannotWait(Conflict):
    code = "TASK_CANNOT_WAIT"


class NotAnApprover(Conflict):
    code = "NOT_AN_APPROVER"


class NotInTransaction(Conflict):
    code = "NOT_IN_TRANSACTION"


class ExecutionIncomplete(Conflict):
    code = "EXECUTION_INCOMPLETE"


class ExecutionRunning(Conflict):
    code = "EXECUTION_RUNNING"


class StoreError(OutlastError):
    code = "STORE_ERROR"


class StoreFromTheFuture(StoreError):
    code = "STORE_FROM_THE_FUTURE"


class StoreCorrupt(StoreError):
    code = "STORE_CORRUPT"


class StoreFull(StoreError):
    code = "STORE_FULL"


class StoreUnavailable(StoreError):
    code = "STORE_UNAVAILABLE"


class UnsupportedStore(StoreError):
    code = "UNSUPPORTED_STORE"


class UsedAfterFork(StoreError):
    code = "USED_AFTER_FORK"


class LeaseLost(StoreError):
    code = "LEASE_LOST"


class Unreachable(OutlastError):
    code = "UNREACHABLE"


class ProviderRefused(OutlastError):
    code = "PROVIDER_REFUSED"


class ServerUnavailable(OutlastError):
    code = "SERVER_UNAVAILABLE"


class InvalidServerAnswer(OutlastError):
    code = "INVALID_SERVER_ANSWER"


class StillWaiting(Conflict):
    code = "STILL_WAITING"


class SessionError(OutlastError):
    code = "SESSION_FAILED"


class DeadlineExceeded(SessionError):
    code = "DEADLINE_EXCEEDED"


class RunError(SessionError):
    code = "RUN_ERROR"


class ToolError(OutlastError):
    code = "TOOL_ERROR"


class Retry(ToolError):
    code = "RETRY"


class InvalidPlan(ToolError):
    code = "INVALID_PLAN"


class RunFailed(ToolError):
    code = "RUN_FAILED"


class EventTimeout(ToolError):
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
    code = "SUBAGENT_FAILED"


class AuthorizationError(ToolError):
    code = "AUTHORIZATION_FAILED"
