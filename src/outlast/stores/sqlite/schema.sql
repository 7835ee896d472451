-- The tables of a SQLite store as they are today; migrations/ brings an older file here.
--
--   a session has lanes, and one log that they share
--   a lane has deliveries, requests to humans, and a snapshot of its fold
--
-- Everything here can be rebuilt from the log, except the owners of lanes, deployments and pins, the
-- positions of outbox cursors, documents, and the names and the usage of what was erased.
--
-- Every name begins with outlast_, so that an application may keep its own tables in the same file.
-- Keys that join tables are integers: ids are stored once. Tables have a rowid: with WITHOUT ROWID
-- the log took twice the room. The lane `main` is NULL where a row is written per commit. There are
-- no foreign keys: only our own transactions write, and a second check would cost a lookup per row.

CREATE TABLE outlast_sessions (
    -- Half of a log key, hence 31 bits. Never given twice: see `add_session`.
    sid INTEGER PRIMARY KEY CHECK (sid BETWEEN 1 AND 2147483647),
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    mode TEXT NOT NULL,
    -- The named queue that it stands in, if it does.
    queue TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    over TEXT NOT NULL DEFAULT '' CHECK (over IN ('', 'completed', 'failed', 'ended')),
    -- The offset up to which slices have changed: an owner that has not seen it may not update them.
    slices_changed INTEGER NOT NULL DEFAULT 0,
    -- The id of the session that started it, if one did. Its own row may be gone.
    parent TEXT NOT NULL DEFAULT '',
    -- Its parent was erased: a worker erases it as well.
    orphaned INTEGER NOT NULL DEFAULT 0 CHECK (orphaned IN (0, 1))
) STRICT;

CREATE INDEX outlast_sessions_of_tenant ON outlast_sessions (tenant, id);
CREATE INDEX outlast_sessions_of_parent ON outlast_sessions (parent, id) WHERE parent <> '';
CREATE INDEX outlast_sessions_orphaned ON outlast_sessions (id) WHERE orphaned;

-- What sessions are found by: texts by name, given at their start. A list of those with a tag is a
-- scan of neighbours, newest first, of one tenant or of all.
CREATE TABLE outlast_tags (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    id TEXT NOT NULL,
    sid INTEGER NOT NULL,
    PRIMARY KEY (tenant, name, value, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX outlast_tags_of_any_tenant ON outlast_tags (name, value, id, sid);
CREATE INDEX outlast_tags_of_session ON outlast_tags (sid, name, value);

-- One row per commit. The key is sid << 32 | first offset: reading a session is a scan
-- of neighbours, and there is no second index to keep. The next offset follows from a
-- session's last row: only one transaction writes at a time, so offsets become visible in
-- order and without gaps, and no counter has to be written with each commit.
CREATE TABLE outlast_log (
    key INTEGER PRIMARY KEY,
    count INTEGER NOT NULL CHECK (count > 0),
    lane TEXT,
    at INTEGER NOT NULL,
    -- 1: an arrival. 2: changes slices. 4: the session's start or end.
    -- With these, loading a lane skips what is another lane's without reading it.
    marks INTEGER NOT NULL CHECK (marks BETWEEN 0 AND 7),
    data BLOB NOT NULL
) STRICT;

CREATE TABLE outlast_lanes (
    lid INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    lane TEXT NOT NULL,
    agent TEXT NOT NULL,
    -- The worker that may commit. It stays when the owner's lease has run out: the fence decides.
    worker TEXT,
    -- On which evidence its last owner lost it, if it did not give it back: for the next owner.
    evidence TEXT NOT NULL DEFAULT '',
    -- Grows with every claim: a worker that comes back late is refused.
    fence INTEGER NOT NULL DEFAULT 0,
    -- Grows with every commit, so that a commit asked for twice is written once.
    number INTEGER NOT NULL DEFAULT 0,
    -- The offset of the last arrival. An owner may not park the lane past one that it has not seen.
    last_arrival INTEGER NOT NULL,
    -- When to claim the lane, if it has no living owner; NULL: not before something arrives.
    ready_at INTEGER,
    -- The newest record format in the lane: a worker that cannot read it does not claim it.
    version INTEGER NOT NULL,
    status TEXT NOT NULL,
    turn TEXT NOT NULL DEFAULT '',
    -- How many messages wait; counted, so that a long queue costs nothing.
    queued INTEGER NOT NULL DEFAULT 0 CHECK (queued >= 0),
    -- The digest of the owner's last commit: recognizes one whose acknowledgement was lost.
    digest BLOB,
    -- The session's, so that one tenant's lanes are not given out before all others'.
    tenant TEXT NOT NULL DEFAULT '',
    -- The session's, so that what failed in a queue is found by an index.
    queue TEXT NOT NULL DEFAULT '',
    -- A JSON list of what a lane at rest within a turn waits for.
    wait TEXT NOT NULL DEFAULT '[]',
    -- How many owners were lost one after the other, and until when no worker is given the lane:
    -- one that kills its workers must not kill all of them.
    deaths INTEGER NOT NULL DEFAULT 0 CHECK (deaths >= 0),
    claimable_at INTEGER NOT NULL DEFAULT 0,
    -- The bytes of its records, before they are compressed.
    size INTEGER NOT NULL DEFAULT 0,
    -- Why its last turn failed, and when; empty and 0 from the beginning of the next turn on. The
    -- turn can be retried: it is empty where the session itself has failed.
    failure_code TEXT NOT NULL DEFAULT '',
    failure_message TEXT NOT NULL DEFAULT '',
    failure_turn TEXT NOT NULL DEFAULT '',
    failed_at INTEGER NOT NULL DEFAULT 0,
    UNIQUE (sid, lane)
) STRICT;

-- A lane is in one of these at most, and moves only when it is claimed or released:
-- an ordinary commit touches neither.
CREATE INDEX outlast_lanes_ready ON outlast_lanes (ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX outlast_lanes_ready_of_tenant ON outlast_lanes (tenant, ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX outlast_lanes_queued ON outlast_lanes (tenant, queued) WHERE queued > 0;
CREATE INDEX outlast_lanes_left_alone ON outlast_lanes (claimable_at) WHERE claimable_at > 0;
-- To look for failures costs nothing where there are none.
CREATE INDEX outlast_lanes_failed ON outlast_lanes (failed_at) WHERE failed_at > 0;
CREATE INDEX outlast_lanes_failed_of_tenant ON outlast_lanes (tenant, failed_at) WHERE failed_at > 0;
CREATE INDEX outlast_lanes_failed_of_queue ON outlast_lanes (queue, failed_at)
    WHERE failed_at > 0 AND queue <> '';
CREATE INDEX outlast_lanes_owned ON outlast_lanes (worker, tenant, agent) WHERE worker IS NOT NULL;

-- The key is sid << 32 | offset of the arrival. Of an erased session these rows stay without
-- content: the names of its dispatches, so that none of them starts it again.
CREATE TABLE outlast_deliveries (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    lane TEXT,
    kind TEXT NOT NULL,
    -- How many messages were queued before it on arrival, for the receipt of a repeated admission.
    position INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'joined', 'settled')),
    outcome TEXT,
    turn TEXT,
    settled_offset INTEGER,
    -- Why its turn failed and when, also after other turns of its lane.
    failure_code TEXT,
    failed_at INTEGER,
    -- A digest of what was asked for: the same id with other content is a conflict.
    fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 16)
) STRICT;

CREATE INDEX outlast_deliveries_failed ON outlast_deliveries (failed_at)
    WHERE failed_at IS NOT NULL;

-- Only dispatch ids that a caller chose. One that Outlast made is the delivery's own id.
-- `name` is a digest of scope and id: it can outlive the session that it was used for.
CREATE TABLE outlast_dispatches (
    tenant TEXT NOT NULL,
    name BLOB NOT NULL CHECK (length(name) = 16),
    delivery INTEGER NOT NULL,
    UNIQUE (tenant, name)
) STRICT;

-- A question to a human: open until the first of answer, expiry and cancel closes it.
CREATE TABLE outlast_requests (
    rid INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    sid INTEGER NOT NULL,
    lane TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL
        CHECK (state IN ('open', 'answered', 'cancelled', 'superseded', 'expired')),
    expires_at INTEGER NOT NULL,
    -- The offset of the answer: the lane may close the request in another way only before it.
    answered_offset INTEGER NOT NULL DEFAULT 0,
    data TEXT NOT NULL
) STRICT;

CREATE INDEX outlast_requests_of_session ON outlast_requests (sid);
CREATE INDEX outlast_requests_open ON outlast_requests (rid) WHERE state = 'open';
CREATE INDEX outlast_requests_open_of_tenant ON outlast_requests (tenant, rid) WHERE state = 'open';

CREATE TABLE outlast_tokens (
    tid INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    token TEXT NOT NULL,
    sid INTEGER NOT NULL,
    living INTEGER NOT NULL CHECK (living IN (0, 1))
) STRICT;

-- A token leads to one session; a dead one may be used again.
CREATE UNIQUE INDEX outlast_tokens_living ON outlast_tokens (tenant, token) WHERE living;
CREATE INDEX outlast_tokens_dead ON outlast_tokens (tenant, token) WHERE NOT living;
CREATE INDEX outlast_tokens_of_session ON outlast_tokens (sid);

-- Values too large for the log, each as long as a session uses it.
CREATE TABLE outlast_blobs (
    tenant TEXT NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32),
    data BLOB NOT NULL,
    UNIQUE (tenant, hash)
) STRICT;

-- The sessions whose logs point at a blob, written with the first commit that does. The blob goes
-- with the last of them.
CREATE TABLE outlast_blob_users (
    tenant TEXT NOT NULL,
    hash BLOB NOT NULL,
    sid INTEGER NOT NULL,
    PRIMARY KEY (tenant, hash, sid)
) STRICT, WITHOUT ROWID;

CREATE INDEX outlast_blob_users_of_session ON outlast_blob_users (sid);

-- Folds of lanes, overwritten in place. One made by another version of the fold is ignored.
CREATE TABLE outlast_snapshots (
    lid INTEGER PRIMARY KEY,
    last_offset INTEGER NOT NULL,
    fold INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE outlast_slices (
    sid INTEGER PRIMARY KEY,
    last_offset INTEGER NOT NULL,
    fold INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;

-- The calls that have taken idempotency keys. The scope names a tenant or a session.
CREATE TABLE outlast_effects (
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    session_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('held', 'done', 'unknown', 'free')),
    value TEXT NOT NULL,
    UNIQUE (scope, key)
) STRICT;

-- For the erasure of a session: its keys in the scope of a tenant. Those in its own scope are found by it.
CREATE INDEX outlast_effects_shared ON outlast_effects (session_id)
    WHERE substr(scope, 1, 8) <> 'session:';

-- A call that holds a permit under a limit, or waits for one behind those of its tenant with a
-- smaller rank, or the same and a smaller pid; tenants take turns. `most` is how many may hold one at once. A permit belongs to the
-- call, not to its worker: it stays until an owner of the lane has recorded the call's outcome.
CREATE TABLE outlast_permits (
    pid INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    lid INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    most INTEGER NOT NULL,
    held INTEGER NOT NULL CHECK (held IN (0, 1)),
    asked_at INTEGER NOT NULL,
    -- When it counts as having asked: earlier than it did by what it is ahead.
    rank INTEGER NOT NULL,
    -- Since when it could begin, or should have asked again. A call that does not come is skipped:
    -- it is `absent`, and in no queue until it asks.
    expected_at INTEGER,
    absent INTEGER NOT NULL DEFAULT 0 CHECK (absent IN (0, 1)),
    UNIQUE (name, lid, call_id)
) STRICT;

CREATE INDEX outlast_permits_in_order ON outlast_permits (name, held, pid);
CREATE INDEX outlast_permits_of_lane ON outlast_permits (lid);
CREATE INDEX outlast_permits_expected ON outlast_permits (expected_at)
    WHERE expected_at IS NOT NULL;

-- A limit, shared by all tenants that name it.
CREATE TABLE outlast_limits (
    name TEXT NOT NULL PRIMARY KEY,
    -- Up to when the starts under it are paid for, in microseconds: see core/limit.py.
    paid_until INTEGER NOT NULL,
    -- The tenant whose call began last: tenants take turns.
    last_tenant TEXT NOT NULL DEFAULT ''
) STRICT;

-- The workers not known to be dead. `machine` says where their lock files can be probed.
CREATE TABLE outlast_workers (
    worker TEXT NOT NULL PRIMARY KEY,
    machine TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    version TEXT NOT NULL,
    lease INTEGER NOT NULL CHECK (lease > 0),
    lease_until INTEGER NOT NULL,
    -- How many lanes it runs at once, of which agents and names, as JSON; an empty list means all.
    concurrency INTEGER NOT NULL DEFAULT 0,
    agents TEXT NOT NULL DEFAULT '[]',
    lanes TEXT NOT NULL DEFAULT '[]',
    -- An operator asked it to release its lanes and stop.
    draining INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),
    -- Its counters, as JSON text; nothing here reads them.
    counters TEXT NOT NULL DEFAULT '',
    -- How many lanes of an agent may be at work at once, by agent, as JSON.
    at_once TEXT NOT NULL DEFAULT '{}',
    -- It takes only lanes for which something has arrived since then; 0: whatever is ready.
    arrived_since INTEGER NOT NULL DEFAULT 0,
    -- The named version of the code that it runs, if that has a name.
    deployment TEXT NOT NULL DEFAULT ''
) STRICT;

-- The named versions of users' code. `current_since` orders them: the current one of an agent is the
-- last one that serves it, `agents` being a JSON list. What would be pinned to one that is retired is
-- pinned to the other one.
CREATE TABLE outlast_deployments (
    name TEXT NOT NULL PRIMARY KEY,
    agents TEXT NOT NULL,
    began_at INTEGER NOT NULL,
    current_since INTEGER NOT NULL,
    -- Of what models and callers see, by what they are of, as JSON; nothing here reads them.
    digests TEXT NOT NULL DEFAULT '{}',
    retired_to TEXT NOT NULL DEFAULT ''
) STRICT;

-- The lanes that are pinned to a deployment, `*` being every one, and since when. One that `stays`
-- waits for its workers.
CREATE TABLE outlast_pins (
    lid INTEGER PRIMARY KEY,
    deployment TEXT NOT NULL,
    stays INTEGER NOT NULL DEFAULT 0 CHECK (stays IN (0, 1)),
    at INTEGER NOT NULL
) STRICT;

CREATE INDEX outlast_pins_of_deployment ON outlast_pins (deployment);

-- What model calls have used, by session and by what it is asked for; in the session with the number
-- 0 what those used that were erased. `day` counts days since 1970, in UTC.
CREATE TABLE outlast_usage (
    sid INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    principal TEXT NOT NULL,
    -- The remote agent whose calls these are; empty: they are this app's own.
    remote TEXT NOT NULL,
    day INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cache_read_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    model_calls INTEGER NOT NULL,
    unpriced_calls INTEGER NOT NULL,
    nano_usd INTEGER NOT NULL,
    PRIMARY KEY (sid, day, model, principal, remote, tenant, agent)
) STRICT, WITHOUT ROWID;

-- Budgets that were set, have a session's log to thank for their terms, or are of a day on which
-- something was spent. `terms` are JSON, empty for a budget that was taken away; `reserved` and `spent`
-- have the amounts in the order of their fields. `day` is -1 for the terms of a daily budget, 0 for one
-- without an end. `returns` grows whenever something in it becomes free.
CREATE TABLE outlast_budgets (
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('session', 'principal', 'tenant')),
    who TEXT NOT NULL,
    day INTEGER NOT NULL CHECK (day >= -1),
    terms TEXT NOT NULL,
    revision INTEGER NOT NULL DEFAULT 0,
    reserved TEXT NOT NULL DEFAULT '[0,0,0,0,0,0]',
    spent TEXT NOT NULL DEFAULT '[0,0,0,0,0,0]',
    returns INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, scope, who, day)
) STRICT, WITHOUT ROWID;

CREATE INDEX outlast_budgets_revised ON outlast_budgets (revision) WHERE revision > 0;

-- What each session has reserved and spent of a budget; the session 0 has what erased ones spent.
CREATE TABLE outlast_budget_uses (
    sid INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    who TEXT NOT NULL,
    day INTEGER NOT NULL,
    reserved TEXT NOT NULL,
    spent TEXT NOT NULL,
    PRIMARY KEY (sid, tenant, scope, who, day)
) STRICT, WITHOUT ROWID;

-- Lanes at rest that wait until something comes back to a budget.
CREATE TABLE outlast_budget_waiters (
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    who TEXT NOT NULL,
    day INTEGER NOT NULL,
    lid INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, who, day, lid)
) STRICT, WITHOUT ROWID;

-- Erased sessions whose log or blobs are partly still in the file. A large log is deleted in pieces,
-- so that no commit waits for long.
CREATE TABLE outlast_erasures (
    sid INTEGER PRIMARY KEY
) STRICT;

-- A cursor over a session's log, whose events of the types in `events` (JSON) go to a receiver
-- outside. A commit with such an event makes the outbox cursors of its session due. `told` grows with
-- every such commit; `held` counts how often the cursor was taken, and until `held_until` no other
-- process may take it.
CREATE TABLE outlast_outbox_cursors (
    oid INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    -- Signs what is posted to `url`, where the caller brought a secret. It is in no log.
    secret TEXT NOT NULL DEFAULT '',
    events TEXT NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    told INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    held_until INTEGER NOT NULL DEFAULT 0,
    -- When to look at it; NULL: not before there is something to tell.
    due_at INTEGER,
    tries INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    UNIQUE (sid, name)
) STRICT;

CREATE INDEX outlast_outbox_cursors_due ON outlast_outbox_cursors (due_at) WHERE due_at IS NOT NULL;

-- Events that could not be delivered in time.
CREATE TABLE outlast_dead_letters (
    did INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    cursor_name TEXT NOT NULL,
    event_offset INTEGER NOT NULL,
    type TEXT NOT NULL,
    error TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;

CREATE INDEX outlast_dead_letters_of_session ON outlast_dead_letters (sid);

-- Small documents, written by compare-and-set: keys to the server, encrypted tokens, holds, schedules.
-- `data` belongs to the kind's owner. An expired document is as if it did not exist.
CREATE TABLE outlast_documents (
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    -- A writer that replaces a document names the version that it knows.
    version INTEGER NOT NULL,
    due_at INTEGER,
    expires_at INTEGER NOT NULL CHECK (expires_at >= 0),
    data BLOB NOT NULL,
    PRIMARY KEY (kind, name, tenant)
) STRICT;

CREATE INDEX outlast_documents_expiring ON outlast_documents (expires_at) WHERE expires_at > 0;

-- Sockets that want a hint after every write, in the directory of the workers or at a path of their
-- own. `place` is the machine.
CREATE TABLE outlast_listeners (
    address TEXT NOT NULL PRIMARY KEY,
    place TEXT NOT NULL
) STRICT;

-- A session with everything that follows from the end of its log, its lanes and its tokens. Its
-- status is that of its liveliest lane, unless it is over.
CREATE VIEW outlast_session_list AS
SELECT s.sid, s.id, s.tenant, s.agent, s.mode, s.created_at, s.over, s.parent,
       g.at AS updated_at,
       (g.key & 4294967295) + g.count - 1 AS last_offset,
       iif(s.over <> '', s.over,
           (SELECT CASE min(CASE
                            WHEN l.status = 'running' THEN 1
                            WHEN l.status = 'queued' THEN 2
                            WHEN l.queued AND (l.status = 'idle' OR l.failure_turn <> '') THEN 2
                            WHEN l.status = 'waiting' THEN 3
                            WHEN l.status = 'sleeping' THEN 4
                            WHEN l.status = 'failed' THEN 5
                            ELSE 6 END)
                   WHEN 1 THEN 'running'
                   WHEN 2 THEN 'queued'
                   WHEN 3 THEN 'waiting'
                   WHEN 4 THEN 'sleeping'
                   WHEN 5 THEN 'failed'
                   ELSE 'idle' END
              FROM outlast_lanes AS l
             WHERE l.sid = s.sid)) AS status,
       coalesce((SELECT t.token
                   FROM outlast_tokens AS t
                  WHERE t.sid = s.sid AND t.living
                  ORDER BY t.tid DESC
                  LIMIT 1), '') AS token
  FROM outlast_sessions AS s
  JOIN outlast_log AS g ON g.key = (SELECT max(key)
                                       FROM outlast_log
                                      WHERE key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295);
