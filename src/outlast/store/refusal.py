"""The words in which something is refused: the same, whichever store says them.

Owns the sentences, so that the two stores cannot come to differ in them. When each is due is said
by the topics' protocols, and tested by `outlast.testing.StoreContract`.
"""

from outlast.errors import (
    CursorAhead,
    DispatchConflict,
    HistoryGone,
    QueueFull,
    RequestClosed,
    SessionErased,
    SessionOver,
    SessionTooLarge,
    TokenTaken,
    UnknownRequest,
    UnknownSession,
)


def unknown_session(session_id: str) -> UnknownSession:
    return UnknownSession(f"there is no session {session_id}; check its id", session_id=session_id)


def session_exists(session_id: str) -> DispatchConflict:
    return DispatchConflict(
        f"session {session_id} exists already; start one under a new id", session_id=session_id
    )


def session_over(session_id: str, how: str) -> SessionOver:
    return SessionOver(f"session {session_id} is {how}; start a new one", session_id=session_id)


def session_erased(dispatch_id: str) -> SessionErased:
    return SessionErased(
        f"the session of dispatch {dispatch_id!r} was erased;"
        " use a new dispatch_id to start another",
        dispatch_id=dispatch_id,
    )


def other_content(dispatch_id: str) -> DispatchConflict:
    return DispatchConflict(
        f"dispatch {dispatch_id!r} was used for other content;"
        " use a new dispatch_id for new content",
        dispatch_id=dispatch_id,
    )


def token_taken() -> TokenTaken:
    return TokenTaken("this continuation token leads to another session; choose another one")


def queue_full(kind: str, whose: str, most: int) -> QueueFull:
    return QueueFull(
        f"the queue of {kind} {whose} is full: {most} messages wait in it; send this again later",
        most=most,
        **{kind: whose},
    )


def session_too_large(session_id: str, most: int) -> SessionTooLarge:
    return SessionTooLarge(
        f"session {session_id} would have more than {most:,} bytes with this;"
        " go on in a new session",
        session_id=session_id,
        most=most,
    )


def unknown_request(session_id: str, request_id: str) -> UnknownRequest:
    return UnknownRequest(
        f"session {session_id} has no request {request_id}; check its id", request_id=request_id
    )


def request_closed(request_id: str, state: str) -> RequestClosed:
    return RequestClosed(
        f"request {request_id} is {state}; it takes no more answers",
        request_id=request_id,
        state=state,
    )


def history_gone(session_id: str, offset: int) -> HistoryGone:
    return HistoryGone(
        f"the log of {session_id} holds something else at {offset} than when it was read: the"
        " database was restored from a backup, or a failover lost what was there; read again from"
        " the beginning",
        session_id=session_id,
        cursor=offset,
    )


def cursor_ahead(session_id: str, cursor: int, end: int) -> CursorAhead:
    return CursorAhead(
        f"the log of {session_id} ends at {end}, before the cursor {cursor}: was the database"
        " restored from a backup? read again from the beginning",
        session_id=session_id,
        cursor=cursor,
        end=end,
    )
