-- The tables of a store in a schema of a PostgreSQL database, as of today. A new store is made from
-- this file; migrations/ brings an older one here, and functions/ holds the code that runs inside
-- the server.
--
--   a session has lanes, and one log that they share
--   a lane has deliveries, requests to humans, and a snapshot of its fold
--
-- All that is here besides the log can be built anew from it, but for who owns what, who may
-- come in, how far outbox cursors have told, when schedules are due, secrets, and the names of what was
-- erased. The schema's name is the store's: wherever it says `outlast.`, the name from the URL is put.
-- The tenant is in every key, so that a database that has become too small can be split by
-- it; ids come first in theirs, so that they are found without it. Ids are stored once, and
-- joined by the integer `sid`. Texts compare by their bytes. No foreign keys: all writing
-- is done by functions of ours, and checking again would cost a lookup per row.

CREATE TABLE outlast.sessions (
    sid bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    mode text NOT NULL,
    created_at bigint NOT NULL,
    over text NOT NULL DEFAULT '' CHECK (over IN ('', 'completed', 'failed', 'ended')),
    -- Where the log ends. Whoever adds to the log holds this row, so offsets become visible
    -- in order and without gaps.
    last_offset integer NOT NULL DEFAULT 0 CHECK (last_offset >= 0),
    last_at bigint NOT NULL,
    -- The offset up to which slices have changed: who has not seen it makes no update of them.
    slices_changed integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, sid),
    UNIQUE (id, tenant)
) WITH (fillfactor = 60);

-- For listing, and for nothing else: a statement that does not say `id <> ''` has one index less
-- to take by mistake.
CREATE INDEX sessions_of_tenant ON outlast.sessions (tenant, id) WHERE id <> '';

-- Which session started which. A session whose parent was erased is doomed: it goes too.
CREATE TABLE outlast.children (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    parent text COLLATE "C" NOT NULL CHECK (parent <> ''),
    doomed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, sid)
);

CREATE INDEX children_of_parent ON outlast.children (parent, sid);
CREATE INDEX children_doomed ON outlast.children (sid) WHERE doomed;

-- One row per commit. Rows are compressed before they come here, and kept in one piece.
CREATE TABLE outlast.log (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    first_offset integer NOT NULL CHECK (first_offset > 0),
    count integer NOT NULL CHECK (count > 0),
    lane text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    -- 1: an arrival. 2: changes slices. 4: the session's start or end.
    -- With these, loading a lane skips what is another lane's without reading it.
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
    -- Their order within a session; nothing refers to it.
    lid bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    -- Who may commit. It stays when the owner's lease has run out: the fence decides.
    worker text COLLATE "C",
    -- Grows with every claim: a worker that comes back late is refused.
    fence bigint NOT NULL DEFAULT 0,
    -- Grows with every commit, so that a commit asked for twice is written once.
    number bigint NOT NULL DEFAULT 0,
    -- The offset of the last arrival. Nobody parks a lane past one that he has not seen.
    last_arrival integer NOT NULL,
    -- When to claim the lane, if nobody living owns it; NULL: not before something arrives.
    ready_at bigint,
    -- The newest record format in the lane: who cannot read it does not claim it.
    version integer NOT NULL,
    status text NOT NULL,
    turn text NOT NULL DEFAULT '',
    -- What a lane that rests within a turn waits for.
    wait text NOT NULL DEFAULT '',
    -- How many messages wait; counted, so that a long queue costs nothing.
    queued integer NOT NULL DEFAULT 0 CHECK (queued >= 0),
    -- What the owner's last commit was and where it stands, for who lost its acknowledgement.
    digest bytea CHECK (length(digest) = 16),
    commit_offset integer,
    commit_at bigint,
    PRIMARY KEY (tenant, sid, lane)
) WITH (fillfactor = 60);

-- A lane is in one kind of these at most, and moves only when it is claimed or released: an
-- ordinary commit changes nothing that is indexed, so its new row stays beside the old one.
CREATE INDEX lanes_ready ON outlast.lanes (ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX lanes_ready_of_tenant ON outlast.lanes (tenant, ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX lanes_owned ON outlast.lanes (worker, tenant, agent) WHERE worker IS NOT NULL;
CREATE INDEX lanes_queued ON outlast.lanes (tenant) INCLUDE (queued) WHERE queued > 0;

CREATE TABLE outlast.deliveries (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    arrival integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    -- What was queued before it when it came: the receipt says so again if asked again.
    position integer NOT NULL,
    state text NOT NULL CHECK (state IN ('queued', 'running', 'joined', 'settled')),
    outcome text,
    turn text,
    settled_offset integer,
    -- A digest of what was asked for: the same id with other content is a conflict.
    fingerprint bytea NOT NULL CHECK (length(fingerprint) = 16),
    PRIMARY KEY (tenant, sid, arrival),
    UNIQUE (id, tenant)
) WITH (fillfactor = 70);

-- Only dispatch ids that a caller chose. One that Outlast made is the delivery's own id.
-- `name` is a digest of scope and id: it outlives the session that it was used for. When that
-- is erased, the ids of all its deliveries are kept here too, as digests: see erase.sql.
CREATE TABLE outlast.dispatches (
    tenant text COLLATE "C" NOT NULL,
    name bytea NOT NULL CHECK (length(name) = 16),
    sid bigint NOT NULL,
    arrival integer NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- A question to a human: open until the first of answer, expiry and cancel closes it.
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
    -- Where the answer arrived: its lane may close the request otherwise only having seen it.
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

-- A token leads to one session; a dead one may be used again.
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
CREATE TABLE outlast.blob_uses (
    tenant text COLLATE "C" NOT NULL,
    hash bytea NOT NULL,
    sid bigint NOT NULL,
    PRIMARY KEY (tenant, hash, sid)
);

CREATE INDEX blob_uses_of_session ON outlast.blob_uses (tenant, sid);

-- Folds, overwritten in place. One made by other rules than today's is ignored.
CREATE TABLE outlast.snapshots (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    up_to integer NOT NULL,
    fold integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (tenant, sid, lane)
);

ALTER TABLE outlast.snapshots ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE outlast.slices (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    up_to integer NOT NULL,
    fold integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (tenant, sid)
);

ALTER TABLE outlast.slices ALTER COLUMN data SET STORAGE EXTERNAL;

-- Who holds an idempotency key. The scope names its tenant or session.
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

-- A limit, and up to when the starts under it are paid for: see core/limit.py. Whoever counts
-- its permits, or changes them, holds this row. A limit is of all tenants that name it.
CREATE TABLE outlast.limits (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    -- In microseconds: see core/limit.py.
    paid_until bigint NOT NULL DEFAULT 0,
    -- How many may hold a permit at once, as was last said.
    most integer NOT NULL DEFAULT 0,
    -- Whose call began last: it is another tenant's turn.
    last_tenant text COLLATE "C" NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- A call that holds a permit under a limit, or waits for one behind those of its tenant with a
-- smaller pid; tenants take turns. `most` is how many may hold one at once. A permit is the
-- call's, not its worker's: it stays until whoever owns the lane has recorded what became of the
-- call.
CREATE TABLE outlast.permits (
    pid bigint GENERATED ALWAYS AS IDENTITY,
    name text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    most integer NOT NULL,
    held boolean NOT NULL,
    -- Since when it has a place, or was told to ask again: who does not come is passed by, and
    -- is in no line until he asks.
    expected_at bigint,
    absent boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, sid, lane, call_id, name)
);

CREATE INDEX permits_in_order ON outlast.permits (name, held, tenant, pid) WHERE NOT absent;
CREATE INDEX permits_expected ON outlast.permits (expected_at) WHERE expected_at IS NOT NULL;

-- A cursor over a session's log, from which events of some types are told to somebody outside.
-- A commit that has something to tell makes the outbox cursors of its session due.
CREATE TABLE outlast.outbox_cursors (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    url text NOT NULL,
    -- Signs what is posted to `url`, where the caller brought a secret. It is in no log.
    secret text NOT NULL DEFAULT '',
    events jsonb NOT NULL,
    position integer NOT NULL DEFAULT 0,
    -- How often there was something new: who settles an outbox cursor sees whether more has come.
    told bigint NOT NULL DEFAULT 0,
    due_at bigint,
    -- How often it was given out, and until when nobody else gets it.
    held bigint NOT NULL DEFAULT 0,
    held_until bigint NOT NULL DEFAULT 0,
    -- Failures since the cursor last moved, and the last of them.
    tries integer NOT NULL DEFAULT 0,
    error text NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, sid, name)
) WITH (fillfactor = 60);

CREATE INDEX outbox_cursors_due ON outlast.outbox_cursors (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_cursors_failing ON outlast.outbox_cursors (tenant, sid) WHERE tries > 0;

-- What an outbox cursor could not tell in time. Said twice it is here once.
CREATE TABLE outlast.dead_letters (
    number bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    cursor_name text COLLATE "C" NOT NULL,
    event_offset integer NOT NULL,
    type text NOT NULL,
    error text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (tenant, sid, cursor_name, event_offset)
);

CREATE INDEX dead_letters_in_order ON outlast.dead_letters (number);
CREATE INDEX dead_letters_of_tenant ON outlast.dead_letters (tenant, number);

-- Keys to the server. Of the secret there is a digest only.
CREATE TABLE outlast.keys (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    scopes jsonb NOT NULL,
    digest text NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (id, tenant)
);

-- When this run of the server first let somebody in. Recovery after a crash comes before that,
-- and does not count: nobody could show a sign of life meanwhile. A recovery that is no start of
-- the server, after one of its processes was killed, is known by an empty table.
CREATE UNLOGGED TABLE outlast.server (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    started_at timestamptz NOT NULL,
    open_since bigint NOT NULL
);

-- The workers not known to be dead, of all tenants. `sign` is the number of the advisory
-- lock that a living one holds; NULL: it has no connection that could hold one.
CREATE TABLE outlast.workers (
    worker text COLLATE "C" NOT NULL PRIMARY KEY,
    sign integer,
    host text NOT NULL,
    pid integer NOT NULL,
    started_at bigint NOT NULL,
    version text NOT NULL,
    -- How many lanes it takes on at once, of which agents and names; no names are all.
    concurrency integer NOT NULL,
    agents jsonb NOT NULL,
    lanes jsonb NOT NULL,
    -- Somebody asked it to hand back its lanes and leave.
    draining boolean NOT NULL DEFAULT false,
    -- What it has counted so far, as JSON text; nothing here reads it.
    tally text NOT NULL DEFAULT '',
    lease bigint NOT NULL CHECK (lease > 0),
    lease_until bigint NOT NULL,
    -- The agents of which only so many lanes may be at work at once.
    at_once jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

CREATE SEQUENCE outlast.signs AS integer CYCLE;

-- Things sealed, which only who sealed them can open. One that has expired is not there.
CREATE TABLE outlast.secrets (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    version bigint NOT NULL,
    expires_at bigint NOT NULL CHECK (expires_at >= 0),
    PRIMARY KEY (tenant, name)
);

CREATE INDEX secrets_expiring ON outlast.secrets (expires_at) WHERE expires_at > 0;

-- Who has a name to himself, and until when.
CREATE TABLE outlast.holds (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    holder text COLLATE "C" NOT NULL,
    held_until bigint NOT NULL
) WITH (fillfactor = 50);

-- When schedules are next due (NULL: not any more), and what they last started.
CREATE TABLE outlast.schedules (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    fingerprint text NOT NULL,
    next_at bigint,
    paused boolean NOT NULL,
    fired_at bigint NOT NULL,
    session_id text COLLATE "C" NOT NULL
) WITH (fillfactor = 50);

-- A session with what follows from its lanes, its tokens and who started it. It is what its liveliest lane
-- is, unless it is over.
CREATE VIEW outlast.session_list AS
SELECT s.sid, s.id, s.tenant, s.agent, s.mode, s.created_at, s.over,
       s.last_at AS updated_at, s.last_offset,
       CASE WHEN s.over <> '' THEN s.over
            ELSE (SELECT CASE min(CASE
                                  WHEN l.status = 'running' THEN 1
                                  WHEN l.status = 'queued' OR l.status = 'idle' AND l.queued > 0
                                  THEN 2
                                  WHEN l.status = 'waiting' THEN 3
                                  WHEN l.status = 'sleeping' THEN 4
                                  ELSE 5 END)
                         WHEN 1 THEN 'running'
                         WHEN 2 THEN 'queued'
                         WHEN 3 THEN 'waiting'
                         WHEN 4 THEN 'sleeping'
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
       (SELECT jsonb_agg(jsonb_build_array(l.lane, CASE WHEN l.status = 'idle' AND l.queued > 0
                                                        THEN 'queued' ELSE l.status END,
                                           l.turn, coalesce(l.worker, ''), l.fence, l.ready_at,
                                           l.queued)
                         ORDER BY l.lid)
          FROM outlast.lanes AS l
         WHERE l.tenant = s.tenant AND l.sid = s.sid)::text AS lanes
  FROM outlast.sessions AS s;

-- The versions that this schema has had: `schema.sql` for the one it was made with, then migrations.
CREATE TABLE outlast.migrations (
    version integer NOT NULL PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
