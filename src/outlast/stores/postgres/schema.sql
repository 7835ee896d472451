-- The tables of a store in a schema of a PostgreSQL database, as of today. A new store is made from
-- this file; migrations/ brings an older one here, and functions/ holds the code that runs inside
-- the server.
--
--   a session has lanes, and one log that they share
--   a lane has deliveries, requests to humans, and a snapshot of its fold
--
-- Everything here can be rebuilt from the log, except the owners of lanes, deployments and pins, the
-- positions of outbox cursors, documents, and the names and the usage of what was erased.
--
-- `outlast.` stands for the schema's name in the URL. The tenant is in every key, so that a database
-- that has become too small can be split by it; ids come first in their keys, so that they are found
-- without it. Ids are stored once, and joined by the integer `sid`. Texts compare by their bytes.
-- There are no foreign keys: only our own functions write, and a second check would cost a lookup per
-- row.

CREATE TABLE outlast.sessions (
    sid bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    mode text NOT NULL,
    -- The named queue that it stands in, if it does.
    queue text COLLATE "C" NOT NULL DEFAULT '',
    created_at bigint NOT NULL,
    over text NOT NULL DEFAULT '' CHECK (over IN ('', 'completed', 'failed', 'ended')),
    -- The log's end. A transaction that adds to the log locks this row, so offsets become visible in
    -- order and without gaps.
    last_offset integer NOT NULL DEFAULT 0 CHECK (last_offset >= 0),
    last_at bigint NOT NULL,
    -- The offset of the last change of slices: an owner that has not seen it may not update them.
    slices_changed integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, sid),
    UNIQUE (id, tenant)
) WITH (fillfactor = 60);

-- For listing only: without `id <> ''` in its text, no other statement can take it by mistake.
CREATE INDEX sessions_of_tenant ON outlast.sessions (tenant, id) WHERE id <> '';

-- The parents of sessions that another one started. A session whose parent was erased is orphaned: a
-- worker erases it as well. These are not columns of `sessions`, since every commit of a child locks
-- its row there, and the erasure of its parent would have to lock it out of order.
CREATE TABLE outlast.children (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    parent text COLLATE "C" NOT NULL CHECK (parent <> ''),
    orphaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, sid)
);

CREATE INDEX children_of_parent ON outlast.children (parent, sid);
CREATE INDEX children_orphaned ON outlast.children (sid) WHERE orphaned;

-- What sessions are found by: texts by name, given at their start. A list of those with a tag is a
-- scan of neighbours, newest first, of one tenant or of all.
CREATE TABLE outlast.tags (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    PRIMARY KEY (tenant, name, value, id)
);

CREATE INDEX tags_of_any_tenant ON outlast.tags (name, value, id);
CREATE INDEX tags_of_session ON outlast.tags (tenant, sid);

-- One row per commit. Rows come compressed and are kept in one piece.
CREATE TABLE outlast.log (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    first_offset integer NOT NULL CHECK (first_offset > 0),
    count integer NOT NULL CHECK (count > 0),
    lane text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    -- 1: an arrival. 2: changes slices. 4: the session's start or end.
    -- By these, loading a lane skips rows of other lanes without reading them.
    marks smallint NOT NULL CHECK (marks BETWEEN 0 AND 7),
    data bytea NOT NULL,
    PRIMARY KEY (tenant, sid, first_offset)
) PARTITION BY HASH (sid);

ALTER TABLE outlast.log ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE outlast.log_00 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 0) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_01 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 1) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_02 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 2) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_03 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 3) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_04 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 4) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_05 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 5) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_06 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 6) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_07 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 7) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_08 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 8) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_09 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 9) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_10 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 10) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_11 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 11) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_12 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 12) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_13 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 13) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_14 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 14) WITH (toast_tuple_target = 8160);
CREATE TABLE outlast.log_15 PARTITION OF outlast.log
    FOR VALUES WITH (MODULUS 16, REMAINDER 15) WITH (toast_tuple_target = 8160);

CREATE TABLE outlast.lanes (
    -- The order of lanes within a session; nothing refers to it.
    lid bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    -- The session's, so that what failed in a queue is found by an index.
    queue text COLLATE "C" NOT NULL DEFAULT '',
    -- The worker that may commit. It stays when its lease has run out: the fence decides.
    worker text COLLATE "C",
    -- On which evidence its last owner lost it, if it did not give it back: for the next owner.
    evidence text NOT NULL DEFAULT '',
    -- Grows with every claim: a worker that comes back late is refused.
    fence bigint NOT NULL DEFAULT 0,
    -- Grows with every commit, so that a commit asked for twice is written once.
    number bigint NOT NULL DEFAULT 0,
    -- The offset of the last arrival. An owner may not park the lane past one that it has not seen.
    last_arrival integer NOT NULL,
    -- When to claim the lane, if it has no living owner; NULL: not before something arrives.
    ready_at bigint,
    -- The newest record format in the lane: a worker that cannot read it does not claim it.
    version integer NOT NULL,
    status text NOT NULL,
    turn text NOT NULL DEFAULT '',
    -- A list of the things that a lane at rest within a turn waits for.
    wait jsonb NOT NULL DEFAULT '[]',
    -- How many messages wait; counted, so that a long queue costs nothing.
    queued integer NOT NULL DEFAULT 0 CHECK (queued >= 0),
    -- The owner's last commit and its place, for an owner that lost the acknowledgement.
    digest bytea CHECK (length(digest) = 16),
    commit_offset integer,
    commit_at bigint,
    -- How many owners were lost one after the other, and until when no worker is given the lane:
    -- one that kills its workers must not kill all of them.
    deaths integer NOT NULL DEFAULT 0 CHECK (deaths >= 0),
    claimable_at bigint NOT NULL DEFAULT 0,
    -- The bytes of its records, before they are compressed.
    size bigint NOT NULL DEFAULT 0,
    -- Why its last turn failed, and when; empty and 0 from the beginning of the next turn on. The
    -- turn can be retried: it is empty where the session itself has failed.
    failure_code text COLLATE "C" NOT NULL DEFAULT '',
    failure_message text NOT NULL DEFAULT '',
    failure_turn text NOT NULL DEFAULT '',
    failed_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, sid, lane)
) WITH (fillfactor = 60);

-- A lane is in one of these at most, and moves only when it is claimed or released: an ordinary
-- commit changes no indexed column, so its new row stays on the page of the old one.
CREATE INDEX lanes_ready ON outlast.lanes (ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX lanes_ready_of_tenant ON outlast.lanes (tenant, ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX lanes_left_alone ON outlast.lanes (claimable_at) WHERE claimable_at > 0;
CREATE INDEX lanes_owned ON outlast.lanes (worker, tenant, agent) WHERE worker IS NOT NULL;
-- To look for failures costs nothing where there are none.
CREATE INDEX lanes_failed ON outlast.lanes (failed_at) WHERE failed_at > 0;
CREATE INDEX lanes_failed_of_queue ON outlast.lanes (queue, failed_at)
    WHERE failed_at > 0 AND queue <> '';
CREATE INDEX lanes_queued ON outlast.lanes (tenant) INCLUDE (queued) WHERE queued > 0;

CREATE TABLE outlast.deliveries (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    arrival integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    -- The number of messages queued before it on arrival, for the receipt of a repeated admission.
    position integer NOT NULL,
    state text NOT NULL CHECK (state IN ('queued', 'running', 'joined', 'settled')),
    outcome text,
    turn text,
    settled_offset integer,
    -- Why its turn failed and when, also after other turns of its lane.
    failure_code text,
    failed_at bigint,
    -- A digest of the content: the same id with other content is a conflict.
    fingerprint bytea NOT NULL CHECK (length(fingerprint) = 16),
    PRIMARY KEY (tenant, sid, arrival),
    UNIQUE (id, tenant)
) WITH (fillfactor = 70);

CREATE INDEX deliveries_failed ON outlast.deliveries (failed_at) WHERE failed_at IS NOT NULL;

-- Dispatch ids that a caller chose; one that Outlast made is the delivery's own id. `name` is a digest
-- of scope and id, and outlives the session that it was used for. When that is erased, the ids of its
-- other deliveries are kept here as well, as digests: see erasure.sql.
CREATE TABLE outlast.dispatches (
    tenant text COLLATE "C" NOT NULL,
    name bytea NOT NULL CHECK (length(name) = 16),
    sid bigint NOT NULL,
    arrival integer NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- A request to a human: open until the first of answer, expiry and cancel closes it.
CREATE TABLE outlast.requests (
    rid bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    state text NOT NULL
        CHECK (state IN ('open', 'answered', 'cancelled', 'superseded', 'expired')),
    expires_at bigint NOT NULL,
    -- The offset of the answer: the lane may close the request in another way only before it.
    answered_offset integer NOT NULL DEFAULT 0,
    data text NOT NULL,
    PRIMARY KEY (id, tenant)
);

CREATE INDEX requests_of_session ON outlast.requests (tenant, sid);
CREATE INDEX requests_in_order ON outlast.requests (rid);
CREATE INDEX requests_open ON outlast.requests (rid) WHERE state = 'open';
CREATE INDEX requests_open_of_tenant ON outlast.requests (tenant, rid) WHERE state = 'open';

CREATE TABLE outlast.tokens (
    tid bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    living boolean NOT NULL,
    PRIMARY KEY (tenant, sid, tid)
);

-- A living token leads to one session; a dead one may be taken again.
CREATE UNIQUE INDEX tokens_living ON outlast.tokens (token, tenant) WHERE living;
CREATE INDEX tokens_dead ON outlast.tokens (token, tenant, tid) WHERE NOT living;

-- Values too large for the log, kept once for all sessions of a tenant that use them.
CREATE TABLE outlast.blobs (
    tenant text COLLATE "C" NOT NULL,
    hash bytea NOT NULL CHECK (length(hash) = 32),
    data bytea NOT NULL,
    PRIMARY KEY (tenant, hash)
);

ALTER TABLE outlast.blobs ALTER COLUMN data SET STORAGE EXTERNAL;

-- The sessions whose logs point at a blob. The blob goes with the last of them.
CREATE TABLE outlast.blob_users (
    tenant text COLLATE "C" NOT NULL,
    hash bytea NOT NULL,
    sid bigint NOT NULL,
    PRIMARY KEY (tenant, hash, sid)
);

CREATE INDEX blob_users_of_session ON outlast.blob_users (tenant, sid);

-- Folds of lanes, overwritten in place. One made by another version of the fold is ignored.
CREATE TABLE outlast.snapshots (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    last_offset integer NOT NULL,
    fold integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (tenant, sid, lane)
);

ALTER TABLE outlast.snapshots ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE outlast.slices (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    last_offset integer NOT NULL,
    fold integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (tenant, sid)
);

ALTER TABLE outlast.slices ALTER COLUMN data SET STORAGE EXTERNAL;

-- The calls that have taken idempotency keys. The scope names a tenant or a session.
CREATE TABLE outlast.effects (
    tenant text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    call_id text NOT NULL,
    state text NOT NULL CHECK (state IN ('held', 'done', 'unknown', 'free')),
    value text NOT NULL,
    PRIMARY KEY (scope, key, tenant)
);

CREATE INDEX effects_of_session ON outlast.effects (tenant, session_id);

-- A limit, shared by all tenants that name it. A transaction that counts or changes its permits locks
-- this row.
CREATE TABLE outlast.limits (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    -- Up to when the starts under it are paid for, in microseconds: see core/limit.py.
    paid_until bigint NOT NULL DEFAULT 0,
    -- How many calls may hold a permit at once, as the last request said.
    most integer NOT NULL DEFAULT 0,
    -- The tenant whose call began last: tenants take turns.
    last_tenant text COLLATE "C" NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- A call that holds a permit under a limit, or waits for one behind those of its tenant with a smaller
-- rank, or the same and a smaller pid. `most` is how many may hold one at once. A permit belongs to the call, not to its worker: it
-- stays until an owner of the lane has recorded the call's outcome.
CREATE TABLE outlast.permits (
    pid bigint GENERATED ALWAYS AS IDENTITY,
    name text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    most integer NOT NULL,
    held boolean NOT NULL,
    asked_at bigint NOT NULL,
    -- When it counts as having asked: earlier than it did by what it is ahead.
    rank bigint NOT NULL,
    -- Since when it could begin, or should have asked again. A call that does not come is skipped:
    -- it is `absent`, and in no queue until it asks.
    expected_at bigint,
    absent boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, sid, lane, call_id, name)
);

CREATE INDEX permits_in_order ON outlast.permits (name, held, tenant, rank, pid) WHERE NOT absent;
CREATE INDEX permits_expected ON outlast.permits (expected_at) WHERE expected_at IS NOT NULL;

-- A cursor over a session's log, whose events of the types in `events` go to a receiver outside. A
-- commit with such an event makes the outbox cursors of its session due.
CREATE TABLE outlast.outbox_cursors (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    url text NOT NULL,
    -- The caller's secret, which signs what is posted to `url`. It is in no log.
    secret text NOT NULL DEFAULT '',
    events jsonb NOT NULL,
    position integer NOT NULL DEFAULT 0,
    -- Grows with every such commit: by it, settling the cursor sees whether more has come.
    told bigint NOT NULL DEFAULT 0,
    due_at bigint,
    -- How often the cursor was taken, and until when no other process may take it.
    held bigint NOT NULL DEFAULT 0,
    held_until bigint NOT NULL DEFAULT 0,
    -- Failures since the cursor last moved, and the last of them.
    tries integer NOT NULL DEFAULT 0,
    error text NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, sid, name)
) WITH (fillfactor = 60);

CREATE INDEX outbox_cursors_due ON outlast.outbox_cursors (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_cursors_failing ON outlast.outbox_cursors (tenant, sid) WHERE tries > 0;

-- Events that could not be delivered in time, each once.
CREATE TABLE outlast.dead_letters (
    did bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    cursor_name text COLLATE "C" NOT NULL,
    event_offset integer NOT NULL,
    type text NOT NULL,
    error text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (tenant, sid, cursor_name, event_offset)
);

CREATE INDEX dead_letters_in_order ON outlast.dead_letters (did);
CREATE INDEX dead_letters_of_tenant ON outlast.dead_letters (tenant, did);

-- What model calls have used, by session and by what it is asked for; in the session with the number
-- 0 what those used that were erased. `day` counts days since 1970, in UTC. A row is under the lock of
-- its session, so no session waits for another's usage.
CREATE TABLE outlast.usage (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    day integer NOT NULL,
    agent text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    -- The remote agent whose calls these are; empty: they are this app's own.
    remote text COLLATE "C" NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cache_read_tokens bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    model_calls bigint NOT NULL,
    unpriced_calls bigint NOT NULL,
    nano_usd bigint NOT NULL,
    PRIMARY KEY (tenant, sid, day, agent, model, principal, remote)
) WITH (fillfactor = 70);

-- Budgets that were set, have a session's log to thank for their terms, or are of a day on which
-- something was spent. `terms` are JSON, NULL for a budget that was taken away; amounts stand in the
-- order of their fields. `day` is -1 for the terms of a daily budget, 0 for one without an end.
-- `returns` grows whenever something in it becomes free. Sessions share these rows: they are locked
-- after everything else, in the order of their keys.
CREATE TABLE outlast.budgets (
    tenant text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL CHECK (scope IN ('session', 'principal', 'tenant')),
    who text COLLATE "C" NOT NULL,
    day integer NOT NULL CHECK (day >= -1),
    terms jsonb,
    limits bigint[] NOT NULL DEFAULT '{}',
    revision bigint NOT NULL DEFAULT 0,
    reserved bigint[] NOT NULL DEFAULT '{0,0,0,0,0,0}',
    spent bigint[] NOT NULL DEFAULT '{0,0,0,0,0,0}',
    returns bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, scope, who, day)
) WITH (fillfactor = 50);

CREATE INDEX budgets_revised ON outlast.budgets (revision) WHERE revision > 0;

-- What each session has reserved and spent of a budget; the session 0 has what erased ones spent.
CREATE TABLE outlast.budget_uses (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    scope text COLLATE "C" NOT NULL,
    who text COLLATE "C" NOT NULL,
    day integer NOT NULL,
    reserved bigint[] NOT NULL,
    spent bigint[] NOT NULL,
    PRIMARY KEY (tenant, sid, scope, who, day)
) WITH (fillfactor = 70);

-- Lanes at rest that wait until something comes back to a budget.
CREATE TABLE outlast.budget_waiters (
    tenant text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    who text COLLATE "C" NOT NULL,
    day integer NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, scope, who, day, sid, lane)
);

-- When this run of the server first answered. Recovery after a crash comes before that and does not
-- count: no worker could show a sign of life meanwhile. A recovery without a start of the server,
-- after one of its processes was killed, leaves the table empty, as it is not logged. So do the
-- promotion of a standby and the recovery of a backup: `epoch` names a span in which nothing that was
-- committed can have been lost. `file_node` is the number of this table's own file, which is another
-- one where a dump was restored: the row that came with that is of another span.
CREATE UNLOGGED TABLE outlast.server (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    started_at timestamptz NOT NULL,
    open_since bigint NOT NULL,
    epoch uuid NOT NULL,
    file_node oid NOT NULL
);

-- The workers not known to be dead, of all tenants. `sign` is the number of the advisory lock that a
-- living one holds; NULL: it has no connection that could hold one.
CREATE TABLE outlast.workers (
    worker text COLLATE "C" NOT NULL PRIMARY KEY,
    -- The number of its advisory lock; NULL behind a pooler, whose connections outlive the worker.
    sign integer,
    -- Its lock file: the running kernel on which its lock means something, the file's name, and
    -- which file that is, since containers of one kernel may have different files of one name.
    machine text NOT NULL DEFAULT '',
    lock_name text NOT NULL DEFAULT '',
    lock_device text NOT NULL DEFAULT '',
    lock_inode text NOT NULL DEFAULT '',
    -- Where it answers observers on other hosts, HOST:PORT; empty: nowhere.
    liveness_address text NOT NULL DEFAULT '',
    host text NOT NULL,
    pid integer NOT NULL,
    started_at bigint NOT NULL,
    version text NOT NULL,
    -- How many lanes it runs at once, of which agents and names; an empty list of names means all.
    concurrency integer NOT NULL,
    agents jsonb NOT NULL,
    lanes jsonb NOT NULL,
    -- An operator asked it to release its lanes and stop.
    draining boolean NOT NULL DEFAULT false,
    -- Its counters, as JSON text; nothing here reads them.
    counters text NOT NULL DEFAULT '',
    lease bigint NOT NULL CHECK (lease > 0),
    lease_until bigint NOT NULL,
    -- How many lanes of an agent may be at work at once, by agent.
    at_once jsonb NOT NULL DEFAULT '{}',
    -- It takes only lanes for which something has arrived since then; 0: whatever is ready.
    arrived_since bigint NOT NULL DEFAULT 0,
    -- The named version of the code that it runs, if that has a name.
    deployment text COLLATE "C" NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- The named versions of users' code. `current_since` orders them: the current one of an agent is the
-- last one that serves it. What would be pinned to one that is retired is pinned to the other one.
CREATE TABLE outlast.deployments (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    agents jsonb NOT NULL,
    began_at bigint NOT NULL,
    current_since bigint NOT NULL,
    -- Of what models and callers see, by what they are of; nothing here reads them.
    digests jsonb NOT NULL DEFAULT '{}',
    retired_to text COLLATE "C" NOT NULL DEFAULT ''
);

-- The lanes that are pinned to a deployment, `*` being every one, and since when. One that `stays`
-- waits for its workers.
CREATE TABLE outlast.pins (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    deployment text COLLATE "C" NOT NULL,
    stays boolean NOT NULL DEFAULT false,
    at bigint NOT NULL,
    PRIMARY KEY (tenant, sid, lane)
) WITH (fillfactor = 70);

CREATE INDEX pins_of_deployment ON outlast.pins (deployment);

CREATE SEQUENCE outlast.signs AS integer CYCLE;

-- Small documents, written by compare-and-set: keys to the server, encrypted tokens, holds, schedules.
-- `data` belongs to the kind's owner. An expired document is as if it did not exist.
CREATE TABLE outlast.documents (
    kind text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    -- A writer that replaces a document names the version that it knows.
    version bigint NOT NULL,
    due_at bigint,
    expires_at bigint NOT NULL CHECK (expires_at >= 0),
    data bytea NOT NULL,
    PRIMARY KEY (kind, name, tenant)
) WITH (fillfactor = 50);

CREATE INDEX documents_expiring ON outlast.documents (expires_at) WHERE expires_at > 0;

-- A lane as it is listed.
CREATE VIEW outlast.lane_list AS
SELECT l.tenant, l.sid, l.lid, l.failed_at,
       jsonb_build_array(l.lane,
                         CASE WHEN l.queued > 0 AND (l.status = 'idle' OR l.failure_turn <> '')
                              THEN 'queued' ELSE l.status END,
                         l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued, l.deaths,
                         l.claimable_at, l.size, l.failure_code, l.failure_message, l.failed_at,
                         l.failure_turn, l.wait::text) AS listed
  FROM outlast.lanes AS l;

-- A session with everything that follows from its lanes, its tokens and its parent. Its status is that
-- of its liveliest lane, unless it is over. A session may have very many lanes: `some_lanes` are those
-- that a list of sessions shows, always with the one that failed last.
CREATE VIEW outlast.session_list AS
SELECT s.sid, s.id, s.tenant, s.agent, s.mode, s.created_at, s.over,
       s.last_at AS updated_at, s.last_offset,
       CASE WHEN s.over <> '' THEN s.over
            ELSE (SELECT CASE min(CASE
                                  WHEN l.status = 'running' THEN 1
                                  WHEN l.status = 'queued' OR l.queued > 0
                                       AND (l.status = 'idle' OR l.failure_turn <> '')
                                  THEN 2
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
                    FROM outlast.lanes AS l
                   WHERE l.tenant = s.tenant AND l.sid = s.sid)
       END AS status,
       coalesce((SELECT t.token
                   FROM outlast.tokens AS t
                  WHERE t.tenant = s.tenant AND t.sid = s.sid AND t.living
                  ORDER BY t.tid DESC
                  LIMIT 1), '') AS token,
       coalesce((SELECT c.parent
                   FROM outlast.children AS c
                  WHERE c.tenant = s.tenant AND c.sid = s.sid), '') AS parent,
       coalesce((SELECT jsonb_object_agg(t.name, t.value)
                   FROM outlast.tags AS t
                  WHERE t.tenant = s.tenant AND t.sid = s.sid), '{}') AS tags,
       (SELECT jsonb_agg(l.listed ORDER BY l.lid)
          FROM outlast.lane_list AS l
         WHERE l.tenant = s.tenant AND l.sid = s.sid)::text AS lanes,
       (SELECT jsonb_agg(few.listed ORDER BY few.lid)
          FROM (SELECT l.lid, l.listed
                  FROM outlast.lane_list AS l
                 WHERE l.tenant = s.tenant AND l.sid = s.sid
                 ORDER BY l.failed_at DESC, l.lid
                 LIMIT 100) AS few)::text AS some_lanes,
       (SELECT count(*)
          FROM outlast.lanes AS l
         WHERE l.tenant = s.tenant AND l.sid = s.sid) AS lane_count
  FROM outlast.sessions AS s;

-- The versions that this schema has had: `schema.sql` for the one it was made with, then migrations.
CREATE TABLE outlast.migrations (
    version integer NOT NULL PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
