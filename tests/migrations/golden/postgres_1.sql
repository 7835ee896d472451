-- What Outlast keeps in a schema of a PostgreSQL database, as of today; migrations/ is the
-- road here, and functions/ holds what runs inside the server.
--
--   a session has lanes, and one log that they share
--   a lane has deliveries, requests to humans, and a snapshot of its fold
--
-- All that is here besides the log can be built anew from it, but for who owns what. The
-- schema's name is the store's: wherever it says `outlast.`, the name from the URL is put.
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

CREATE INDEX sessions_of_tenant ON outlast.sessions (tenant, id);

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
-- `name` is a digest of scope and id: it can outlive the session that it was used for.
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

CREATE TABLE outlast.tokens (
    tid bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    living boolean NOT NULL,
    PRIMARY KEY (tenant, sid, tid)
);

-- A token leads to one session; a dead one may be used again.
CREATE UNIQUE INDEX tokens_living ON outlast.tokens (tenant, token) WHERE living;

-- Values too large for the log. Each commit that uses one touches it, so that a
-- collector can tell what nobody has needed for a day.
CREATE TABLE outlast.blobs (
    tenant text COLLATE "C" NOT NULL,
    hash bytea NOT NULL CHECK (length(hash) = 32),
    touched_at bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (tenant, hash)
);

ALTER TABLE outlast.blobs ALTER COLUMN data SET STORAGE EXTERNAL;

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

-- A limit, and up to when the starts under it are paid for: see core/limit.py. Whoever counts
-- its permits, or changes them, holds this row. A limit is of all tenants that name it.
CREATE TABLE outlast.limits (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    paid_until bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A call that holds a permit under a limit, or waits for one behind those with a smaller
-- pid. `most` is how many may hold one at once. A permit is the call's, not its worker's: it
-- stays until whoever owns the lane has recorded what became of the call.
CREATE TABLE outlast.permits (
    pid bigint GENERATED ALWAYS AS IDENTITY,
    name text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    most integer NOT NULL,
    held boolean NOT NULL,
    PRIMARY KEY (tenant, sid, lane, call_id, name)
);

CREATE INDEX permits_in_order ON outlast.permits (name, held, pid);

-- When this run of the server first let somebody in. Recovery after a crash comes before that,
-- and does not count: nobody could show a sign of life meanwhile.
CREATE TABLE outlast.server (
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
    lease bigint NOT NULL CHECK (lease > 0),
    lease_until bigint NOT NULL
) WITH (fillfactor = 50);

CREATE SEQUENCE outlast.signs AS integer CYCLE;

-- A session with what follows from its lanes and its tokens. It is what its liveliest lane
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
                  LIMIT 1), '') AS token
  FROM outlast.sessions AS s;

-- The road walked so far.
CREATE TABLE outlast.migrations (
    version integer NOT NULL PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
-- One arrival: checked first, then written, so that a refusal finds nothing written. The
-- answer is one of ["admitted", offset, position], ["repeated", same content, session, lane,
-- delivery, offset, position], ["turn", turn] for a cancel that was made out to another turn
-- than the one that is open, and a refusal with what it is about.
CREATE FUNCTION outlast.admit(wanted jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    w record;
    s record;
    l record;
    earlier record;
    request record;
    now bigint := outlast.now_ms();
    arrived integer;
    before integer;
BEGIN
    SELECT * INTO w
      FROM jsonb_to_record(wanted) AS x (
               tenant text, session text, lane text, delivery text, kind text, name text,
               fingerprint text, new boolean, agent text, mode text, token text, request text,
               turn text, at bigint, version integer, count integer, marks smallint,
               start integer, size integer, most_queued integer, most_queued_of_tenant integer
           );

    SELECT r.id AS session, d.lane, d.id, d.arrival, d.position, d.fingerprint
      INTO earlier
      FROM outlast.find_delivery(w.tenant, decode(w.name, 'hex'), w.delivery) AS d
      JOIN outlast.sessions AS r ON r.tenant = d.tenant AND r.sid = d.sid;
    IF FOUND THEN
        RETURN jsonb_build_array(
            'repeated', earlier.fingerprint = decode(w.fingerprint, 'hex'),
            earlier.session, earlier.lane, earlier.id, earlier.arrival, earlier.position
        );
    END IF;

    SELECT r.tenant, r.sid, r.agent, r.over, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = w.session
       FOR NO KEY UPDATE;
    IF w.new THEN
        IF s.sid IS NOT NULL THEN
            RETURN '["exists"]';
        ELSIF w.token <> '' AND EXISTS (
            SELECT 1
              FROM outlast.tokens AS t
             WHERE t.tenant = w.tenant AND t.token = w.token AND t.living
        ) THEN
            RETURN '["token_taken"]';
        END IF;
    ELSIF s.tenant IS DISTINCT FROM w.tenant THEN
        RETURN '["unknown_session"]';
    ELSIF s.over <> '' THEN
        RETURN jsonb_build_array('over', s.over);
    END IF;
    IF w.kind IN ('message', 'retry') THEN
        -- Who counts all of a tenant's sessions, which others add to, does so alone.
        IF w.most_queued_of_tenant IS NOT NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('outlast.' || w.tenant, 0));
        END IF;
        IF w.most_queued <= (SELECT coalesce(sum(n.queued), 0)
                               FROM outlast.lanes AS n
                              WHERE n.tenant = s.tenant AND n.sid = s.sid) THEN
            RETURN '["queue_full", "session"]';
        ELSIF w.most_queued_of_tenant <= (SELECT coalesce(sum(n.queued), 0)
                                            FROM outlast.lanes AS n
                                           WHERE n.tenant = w.tenant AND n.queued > 0) THEN
            RETURN '["queue_full", "tenant"]';
        END IF;
    END IF;
    IF w.kind = 'reply' THEN
        SELECT CASE WHEN q.state = 'open' AND q.expires_at > 0 AND q.expires_at <= now
                    THEN 'expired' ELSE q.state END AS state
          INTO request
          FROM outlast.requests AS q
         WHERE q.id = w.request AND q.tenant = w.tenant AND q.sid = s.sid;
        IF request.state IS NULL THEN
            RETURN '["unknown_request"]';
        ELSIF request.state <> 'open' THEN
            RETURN jsonb_build_array('closed', request.state);
        END IF;
    END IF;
    SELECT n.turn, n.queued
      INTO l
      FROM outlast.lanes AS n
     WHERE n.tenant = w.tenant AND n.sid = s.sid AND n.lane = w.lane
       FOR NO KEY UPDATE;
    IF w.turn IS NOT NULL AND w.turn <> coalesce(l.turn, '') THEN
        RETURN jsonb_build_array('turn', coalesce(l.turn, ''));
    END IF;

    arrived := coalesce(s.last_offset, 0) + w.count;
    w.at := greatest(w.at, s.last_at);
    IF w.new THEN
        INSERT INTO outlast.sessions (tenant, id, agent, mode, created_at, last_offset, last_at)
        VALUES (w.tenant, w.session, w.agent, w.mode, w.at, arrived, w.at)
        RETURNING tenant, sid, agent, over, last_offset, last_at INTO s;
        IF w.token <> '' THEN
            INSERT INTO outlast.tokens (tenant, token, sid, living)
            VALUES (w.tenant, w.token, s.sid, true);
        END IF;
    ELSE
        UPDATE outlast.sessions AS r
           SET last_offset = arrived, last_at = w.at
         WHERE r.tenant = s.tenant AND r.sid = s.sid;
    END IF;
    before := coalesce(l.queued, 0);
    -- An arrival makes its lane ready at once. An owned lane too: were its owner to die
    -- before it saw the arrival, nobody else would come for it.
    INSERT INTO outlast.lanes AS n
           (tenant, sid, lane, agent, last_arrival, ready_at, version, status, queued)
    VALUES (w.tenant, s.sid, w.lane, s.agent, arrived, now, w.version, 'idle',
            (w.kind IN ('message', 'retry'))::integer)
        ON CONFLICT (tenant, sid, lane) DO UPDATE
       SET last_arrival = excluded.last_arrival,
           ready_at = least(n.ready_at, excluded.ready_at),
           version = greatest(n.version, excluded.version),
           queued = n.queued + excluded.queued;
    INSERT INTO outlast.log (tenant, sid, first_offset, count, lane, at, marks, data)
    VALUES (w.tenant, s.sid, arrived - w.count + 1, w.count, w.lane, w.at, w.marks,
            substr(data, w.start + 1, w.size));
    INSERT INTO outlast.deliveries
           (tenant, sid, arrival, id, lane, kind, position, state, fingerprint)
    VALUES (w.tenant, s.sid, arrived, w.delivery, w.lane, w.kind, before, 'queued',
            decode(w.fingerprint, 'hex'));
    IF w.name IS NOT NULL THEN
        INSERT INTO outlast.dispatches (tenant, name, sid, arrival)
        VALUES (w.tenant, decode(w.name, 'hex'), s.sid, arrived);
    END IF;
    IF w.kind = 'reply' THEN
        UPDATE outlast.requests AS q
           SET state = 'answered', answered_offset = arrived
         WHERE q.id = w.request AND q.tenant = w.tenant;
    END IF;
    IF wanted ? 'blobs' THEN
        PERFORM outlast.keep_blobs(w.tenant, wanted->'blobs', data, now);
    END IF;
    RETURN jsonb_build_array('admitted', arrived, before);
END
$$;

-- What a dispatch was admitted as before: by the name that its caller chose, or by the id
-- of the delivery, which is what Outlast itself names it by.
CREATE FUNCTION outlast.find_delivery(owner text, dispatch bytea, delivery text)
    RETURNS SETOF outlast.deliveries
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF dispatch IS NULL THEN
        RETURN QUERY SELECT * FROM outlast.deliveries AS d WHERE d.id = delivery;
    ELSE
        RETURN QUERY
        SELECT d.*
          FROM outlast.dispatches AS p
          JOIN outlast.deliveries AS d
            ON d.tenant = p.tenant AND d.sid = p.sid AND d.arrival = p.arrival
         WHERE p.tenant = owner AND p.name = dispatch;
    END IF;
END
$$;
-- Lanes for a worker: ready, and with no living owner; those that it was given and does not
-- know of come first, since the answer to an earlier claim was lost. Tenants take turns: a
-- lane's place is the number of its tenant's lanes at work and those of its own that are
-- ready for longer. `ready_at` stays: should this worker die before its first commit, the
-- lane is as ready as it was. Touches lanes only, waits for nobody and writes no record.
--
-- Usually all that is ready fits into `first_ones`. Only behind a backlog are the tenants
-- visited one by one, each with one step in an index, so that a tenant with ten thousand
-- ready lanes costs no more than one with a hundred.
--
-- The answer is {"claims": [[session, tenant, lane, agent, fence, number, last arrival, calls
-- with permits]], "now": what time it is, "next": the first instant at which another lane gets
-- ready, or null}.
CREATE FUNCTION outlast.claim(
    claimer text, most integer, held jsonb, served jsonb, readable integer, names jsonb,
    most_of_agent jsonb
) RETURNS jsonb
    LANGUAGE plpgsql
    -- One plan for good, and one that visits what it needs by index however few or many
    -- lanes there were when the server last counted them.
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET enable_material = off
    SET enable_sort = off
    SET enable_incremental_sort = off
    SET jit = off
AS $$
DECLARE
    now bigint := outlast.now_ms();
    -- While the server was away nobody could renew: no lease has run out on one that has not
    -- been up for as long.
    up bigint := outlast.uptime_ms();
    -- Others may be claiming the same at this moment: look at more than is wanted.
    enough integer := 4 * most + 100;
    patterns text[] := ARRAY(SELECT jsonb_array_elements_text(names));
    claims jsonb;
BEGIN
    PERFORM outlast.note_server();
    IF most > 0 THEN
        IF most_of_agent <> '{}' THEN
            -- What is counted may not change before it is claimed.
            PERFORM pg_advisory_xact_lock(hashtextextended('outlast.lanes', 0));
        END IF;
        WITH RECURSIVE
            owners (name) AS (
                (SELECT l.worker FROM outlast.lanes AS l
                  WHERE l.worker IS NOT NULL ORDER BY l.worker LIMIT 1)
                UNION ALL
                SELECT (SELECT l.worker FROM outlast.lanes AS l
                         WHERE l.worker > o.name ORDER BY l.worker LIMIT 1)
                  FROM owners AS o
                 WHERE o.name IS NOT NULL
            ),
            gone (name) AS (
                SELECT o.name
                  FROM owners AS o
                 WHERE o.name <> claimer
                   AND NOT EXISTS (SELECT 1
                                     FROM outlast.workers AS w
                                    WHERE w.worker = o.name
                                      AND (w.lease_until > now OR up < w.lease))
            ),
            forgotten AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence,
                       coalesce(l.ready_at, 0) AS ready_at
                  FROM outlast.lanes AS l
                  JOIN outlast.sessions AS s ON s.tenant = l.tenant AND s.sid = l.sid
                 WHERE l.worker = claimer
                   AND NOT held ? (s.id || ' ' || l.lane)
                   AND (served IS NULL OR served ? l.agent)
                   AND l.version <= readable
                 LIMIT enough
            ),
            orphaned AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence, l.ready_at
                  FROM gone AS g
                  JOIN outlast.lanes AS l ON l.worker = g.name
                 WHERE l.ready_at <= now
                   AND (served IS NULL OR served ? l.agent)
                   AND (names IS NULL OR l.lane LIKE ANY (patterns))
                   AND l.version <= readable
                 ORDER BY l.ready_at, l.lid
                 LIMIT enough
            ),
            first_ones AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence, l.ready_at
                  FROM outlast.lanes AS l
                 WHERE l.worker IS NULL
                   AND l.ready_at IS NOT NULL
                   AND l.ready_at <= now
                   AND (served IS NULL OR served ? l.agent)
                   AND (names IS NULL OR l.lane LIKE ANY (patterns))
                   AND l.version <= readable
                 ORDER BY l.ready_at
                 LIMIT enough + 1
            ),
            backlog (is_there) AS (SELECT count(*) > enough FROM first_ones),
            tenants (name) AS (
                (SELECT l.tenant FROM outlast.lanes AS l
                  WHERE l.worker IS NULL AND l.ready_at IS NOT NULL
                    AND (SELECT b.is_there FROM backlog AS b)
                  ORDER BY l.tenant LIMIT 1)
                UNION ALL
                SELECT (SELECT l.tenant FROM outlast.lanes AS l
                         WHERE l.worker IS NULL AND l.ready_at IS NOT NULL AND l.tenant > t.name
                         ORDER BY l.tenant LIMIT 1)
                  FROM tenants AS t
                 WHERE t.name IS NOT NULL
            ),
            free AS (
                SELECT f.* FROM first_ones AS f WHERE NOT (SELECT b.is_there FROM backlog AS b)
                UNION ALL
                SELECT l.*
                  FROM tenants AS t
                 CROSS JOIN LATERAL (
                           SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence, l.ready_at
                             FROM outlast.lanes AS l
                            WHERE l.worker IS NULL
                              AND l.ready_at IS NOT NULL
                              -- One tenant's, said so that only its own index will do.
                              AND l.tenant >= t.name
                              AND (l.tenant, l.ready_at) <= (t.name, now)
                              AND (served IS NULL OR served ? l.agent)
                              AND (names IS NULL OR l.lane LIKE ANY (patterns))
                              AND l.version <= readable
                            ORDER BY l.tenant, l.ready_at
                            LIMIT enough
                       ) AS l
            ),
            candidates AS (
                SELECT 0 AS class, f.* FROM forgotten AS f
                UNION ALL
                SELECT 1, o.* FROM orphaned AS o
                UNION ALL
                SELECT 1, f.* FROM free AS f
            ),
            -- Where only one tenant has something to do, and agents have no limit, there is
            -- nothing to be shared out.
            at_work (tenant, agent, lanes) AS (
                SELECT l.tenant, l.agent, count(*)
                  FROM owners AS o
                  JOIN outlast.lanes AS l ON l.worker = o.name
                 WHERE (most_of_agent <> '{}'
                        OR (SELECT min(c.tenant) <> max(c.tenant) FROM candidates AS c))
                   AND o.name NOT IN (SELECT g.name FROM gone AS g)
                 GROUP BY l.tenant, l.agent
            ),
            placed AS (
                SELECT c.*,
                       coalesce((SELECT sum(a.lanes) FROM at_work AS a WHERE a.tenant = c.tenant), 0)
                       + row_number() OVER (PARTITION BY c.class, c.tenant
                                                ORDER BY c.ready_at, c.lid) AS place
                  FROM candidates AS c
            ),
            counted AS (
                SELECT p.*,
                       coalesce((SELECT sum(a.lanes) FROM at_work AS a WHERE a.agent = p.agent), 0)
                       + sum(p.class) OVER (PARTITION BY p.agent
                                                ORDER BY p.class, p.place, p.ready_at, p.lid
                                                 ROWS UNBOUNDED PRECEDING) AS of_agent
                  FROM placed AS p
            ),
            chosen AS (
                SELECT p.*
                  FROM counted AS p
                 WHERE p.class = 0
                    OR p.of_agent <= coalesce((most_of_agent->>p.agent)::integer, p.of_agent)
                 ORDER BY p.class, p.place, p.ready_at, p.lid
                 LIMIT enough
            ),
            -- A lane that somebody else has in hand is left to him, and one that changed hands
            -- since it was looked at is no longer what it was.
            taken AS (
                SELECT l.tenant, l.sid, l.lane, c.class, c.place, c.ready_at, c.lid
                  FROM chosen AS c
                  JOIN outlast.lanes AS l
                    ON l.tenant = c.tenant AND l.sid = c.sid AND l.lane = c.lane
                 WHERE l.fence = c.fence AND l.worker IS NOT DISTINCT FROM c.worker
                 ORDER BY c.class, c.place, c.ready_at, c.lid
                 LIMIT most
                   FOR NO KEY UPDATE OF l SKIP LOCKED
            ),
            claimed AS (
                UPDATE outlast.lanes AS l
                   SET worker = claimer, fence = l.fence + 1
                  FROM taken AS t
                 WHERE l.tenant = t.tenant AND l.sid = t.sid AND l.lane = t.lane
                RETURNING l.sid, l.tenant, l.lane, l.agent, l.fence, l.number, l.last_arrival,
                          t.class, t.place, t.ready_at, l.lid
            )
        SELECT jsonb_agg(
                   jsonb_build_array(
                       s.id, c.tenant, c.lane, c.agent, c.fence, c.number, c.last_arrival,
                       (SELECT coalesce(jsonb_agg(DISTINCT p.call_id), '[]')
                          FROM outlast.permits AS p
                         WHERE p.tenant = c.tenant AND p.sid = c.sid AND p.lane = c.lane)
                   )
                   ORDER BY c.class, c.place, c.ready_at, c.lid
               )
          INTO claims
          FROM claimed AS c
          JOIN outlast.sessions AS s ON s.tenant = c.tenant AND s.sid = c.sid;
    END IF;
    RETURN jsonb_build_object(
        'claims', coalesce(claims, '[]'),
        'now', now,
        'next', (SELECT min(l.ready_at)
                   FROM outlast.lanes AS l
                  WHERE l.worker IS NULL AND l.ready_at IS NOT NULL AND l.ready_at > now)
    );
END
$$;

-- Record that a worker is gone and free its lanes, in the order in which everybody takes
-- them; say whether nobody had before.
CREATE FUNCTION outlast.bury(gone text) RETURNS boolean
    LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM outlast.workers AS w WHERE w.worker = gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM 1
       FROM outlast.lanes AS l
       JOIN outlast.sessions AS s ON s.tenant = l.tenant AND s.sid = l.sid
      WHERE l.worker = gone
      ORDER BY s.id, l.lane
        FOR NO KEY UPDATE OF l;
    UPDATE outlast.lanes AS l SET worker = NULL WHERE l.worker = gone;
    RETURN true;
END
$$;
-- The database's clock, in milliseconds: what decides who owns a lane, whatever the workers'
-- own clocks say. Tests set another instant for one transaction; nothing else ever does.
CREATE FUNCTION outlast.now_ms() RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce(
        nullif(current_setting('outlast_clock.now', true), '')::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    );

-- For how long somebody could ask this server. Where a test sets the time, for ever.
CREATE FUNCTION outlast.uptime_ms() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN CASE
        WHEN coalesce(current_setting('outlast_clock.now', true), '') <> '' THEN 1e15::bigint
        ELSE coalesce(
            (SELECT outlast.now_ms() - s.open_since
               FROM outlast.server AS s
              WHERE s.one AND s.started_at = pg_postmaster_start_time()),
            0
        )
    END;

-- Note when somebody first asks, once for each run of the server. Where nobody has asked
-- before, nobody can have been kept from it: then it counts from the server's start.
CREATE FUNCTION outlast.note_server() RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1
                     FROM outlast.server AS s
                    WHERE s.one AND s.started_at = pg_postmaster_start_time()) THEN
        INSERT INTO outlast.server AS s (started_at, open_since)
        VALUES (pg_postmaster_start_time(), extract(epoch FROM pg_postmaster_start_time()) * 1000)
            ON CONFLICT (one) DO UPDATE
           SET started_at = excluded.started_at, open_since = outlast.now_ms()
         WHERE s.started_at <> excluded.started_at;
    END IF;
END
$$;
-- One commit of a lane's owner, whole or not at all. Whatever may refuse it is looked at
-- before the first write, so that the others of its group stand. The answer is one of
-- ["written", first offset, at, tenant, arrivals], ["arrivals", tenant, arrivals],
-- ["lease_lost"], ["token_taken"], ["slices_changed"] and ["effect_taken", effect]; and
-- ["absent"] where it was only asked whether the commit has landed.
CREATE FUNCTION outlast.commit(wanted jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    w record;
    s record;
    l record;
    now bigint := outlast.now_ms();
    obstacle jsonb;
    first_new integer;
    written_at bigint;
    left_queue integer := 0;
BEGIN
    SELECT * INTO w
      FROM jsonb_to_record(wanted) AS x (
               session text, lane text, worker text, fence bigint, number bigint, seen integer,
               at bigint, ready_at bigint, release boolean, status text, turn text,
               version integer, digest text, count integer, marks smallint, start integer,
               size integer, is_indexed boolean, asks boolean
           );
    -- Two steps, each one in an index: no plan for a join can go wrong.
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = w.session
       FOR NO KEY UPDATE;
    SELECT n.worker, n.fence, n.number, n.last_arrival, n.digest, n.commit_offset, n.commit_at
      INTO l
      FROM outlast.lanes AS n
     WHERE n.tenant = s.tenant AND n.sid = s.sid AND n.lane = w.lane
       FOR NO KEY UPDATE;
    IF l.fence IS DISTINCT FROM w.fence THEN
        RETURN '["lease_lost"]';
    ELSIF l.number = w.number + 1 AND l.digest = decode(w.digest, 'hex') THEN
        RETURN jsonb_build_array(
            'written', l.commit_offset, l.commit_at, s.tenant,
            outlast.arrivals(s.tenant, s.sid, w.lane, w.seen, l.last_arrival)
        );
    ELSIF w.asks THEN
        RETURN '["absent"]';
    ELSIF l.worker IS DISTINCT FROM w.worker OR l.number <> w.number THEN
        RETURN '["lease_lost"]';
    END IF;

    IF w.is_indexed THEN
        obstacle := outlast.find_obstacle(wanted, s.tenant, s.sid, w.seen);
    END IF;
    -- Nobody parks or gives back a lane past something that he has not seen.
    IF obstacle IS NULL
       AND l.last_arrival > w.seen AND (w.ready_at IS NULL OR w.release) THEN
        obstacle := '["arrivals"]';
    ELSIF obstacle IS NULL AND wanted ? 'awaits_permit'
          AND outlast.has_permit_to_come(s.tenant, s.sid, w.lane) THEN
        obstacle := '["arrivals"]';
    END IF;
    IF obstacle->>0 = 'arrivals' THEN
        RETURN obstacle || jsonb_build_array(
            s.tenant, outlast.arrivals(s.tenant, s.sid, w.lane, w.seen, l.last_arrival)
        );
    ELSIF obstacle IS NOT NULL THEN
        RETURN obstacle;
    END IF;

    first_new := s.last_offset + 1;
    written_at := greatest(w.at, s.last_at);
    IF w.is_indexed THEN
        left_queue := outlast.change_indexes(
            wanted, data, s.tenant, s.sid, w.lane, first_new, now
        );
    END IF;
    -- If something came that the owner has not seen, the lane is ready for whoever comes
    -- after it. `worker` is in no new value unless it changes: the row stays on its page.
    UPDATE outlast.lanes AS n
       SET number = n.number + 1,
           status = w.status,
           turn = w.turn,
           ready_at = CASE WHEN n.last_arrival > w.seen THEN least(w.ready_at, now)
                           ELSE w.ready_at END,
           version = greatest(n.version, w.version),
           queued = n.queued - left_queue,
           digest = decode(w.digest, 'hex'),
           commit_offset = first_new,
           commit_at = written_at,
           worker = CASE WHEN w.release THEN NULL ELSE n.worker END
     WHERE n.tenant = s.tenant AND n.sid = s.sid AND n.lane = w.lane;
    IF w.count > 0 THEN
        UPDATE outlast.sessions AS r
           SET last_offset = r.last_offset + w.count, last_at = written_at
         WHERE r.tenant = s.tenant AND r.sid = s.sid;
        INSERT INTO outlast.log (tenant, sid, first_offset, count, lane, at, marks, data)
        VALUES (s.tenant, s.sid, first_new, w.count, w.lane, written_at, w.marks,
                substr(data, w.start + 1, w.size));
    END IF;
    RETURN jsonb_build_array(
        'written', first_new, written_at, s.tenant,
        outlast.arrivals(s.tenant, s.sid, w.lane, w.seen, l.last_arrival)
    );
END
$$;

-- What stands against a commit that its lane would take, or nothing.
CREATE FUNCTION outlast.find_obstacle(wanted jsonb, owner text, session bigint, seen integer)
    RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    held record;
BEGIN
    SELECT e.* INTO held
      FROM jsonb_to_recordset(wanted->'effects')
               AS w (scope text, key text, session_id text, call_id text)
      JOIN outlast.effects AS e ON e.scope = w.scope AND e.key = w.key AND e.tenant = owner
     WHERE (e.session_id, e.call_id) <> (w.session_id, w.call_id) AND e.state <> 'free'
     LIMIT 1;
    IF FOUND THEN
        RETURN jsonb_build_array(
            'effect_taken',
            jsonb_build_array(
                held.scope, held.key, held.session_id, held.call_id, held.state, held.value
            )
        );
    END IF;
    IF EXISTS (SELECT 1
                 FROM jsonb_array_elements_text(wanted->'tokens') AS w (token)
                 JOIN outlast.tokens AS t
                   ON t.tenant = owner AND t.token = w.token AND t.living
                WHERE t.sid <> session) THEN
        RETURN '["token_taken"]';
    END IF;
    IF EXISTS (SELECT 1
                 FROM outlast.sessions AS s
                WHERE s.tenant = owner AND s.sid = session
                  AND s.slices_changed > (wanted->>'slices_seen')::integer) THEN
        RETURN '["slices_changed"]';
    END IF;
    -- A request may be closed otherwise than by its answer only if none came unseen.
    IF EXISTS (SELECT 1
                 FROM jsonb_to_recordset(wanted->'closed') AS w (id text, how text)
                 JOIN outlast.requests AS q ON q.id = w.id AND q.tenant = owner
                WHERE w.how <> 'answered' AND q.answered_offset > seen) THEN
        RETURN '["arrivals"]';
    END IF;
    RETURN NULL;
END
$$;

-- All that a commit changes besides its lane and the log. Returns how many messages that
-- waited in the lane wait no longer.
CREATE FUNCTION outlast.change_indexes(
    wanted jsonb, data bytea, owner text, session bigint, name text, first_new integer, now bigint
) RETURNS integer
    LANGUAGE plpgsql
AS $$
DECLARE
    change record;
    waited boolean;
    left_queue integer := 0;
BEGIN
    FOR change IN
        SELECT *
          FROM jsonb_to_recordset(wanted->'deliveries')
                   AS x (id text, state text, outcome text, turn text, settled integer)
    LOOP
        SELECT d.state = 'queued' AND d.kind IN ('message', 'retry')
               AND d.sid = session AND d.lane = name
          INTO waited
          FROM outlast.deliveries AS d
         WHERE d.id = change.id AND d.tenant = owner;
        UPDATE outlast.deliveries AS d
           SET state = change.state,
               outcome = change.outcome,
               turn = coalesce(change.turn, d.turn),
               settled_offset = first_new + change.settled
         WHERE d.id = change.id AND d.tenant = owner;
        left_queue := left_queue + coalesce(waited, false)::integer;
    END LOOP;

    INSERT INTO outlast.requests (tenant, id, sid, lane, kind, state, expires_at, data)
    SELECT owner, q.id, session, name, q.kind, 'open', q.expires_at, q.data
      FROM jsonb_to_recordset(wanted->'opened')
               AS q (id text, kind text, expires_at bigint, data text);
    UPDATE outlast.requests AS q
       SET state = c.how
      FROM jsonb_to_recordset(wanted->'closed') AS c (id text, how text)
     WHERE q.id = c.id AND q.tenant = owner;

    PERFORM outlast.take_tokens(wanted, owner, session);
    PERFORM outlast.put_effects(wanted->'effects', owner);
    PERFORM outlast.put_snapshots(wanted, data, owner, session, name);
    IF wanted ? 'blobs' THEN
        PERFORM outlast.keep_blobs(owner, wanted->'blobs', data, now);
    END IF;
    IF wanted ? 'sliced' THEN
        UPDATE outlast.sessions AS s
           SET slices_changed = first_new + (wanted->>'sliced')::integer
         WHERE s.tenant = owner AND s.sid = session;
    END IF;
    IF wanted ? 'over' THEN
        PERFORM outlast.end_session(
            owner, session, name, wanted->>'over', first_new + (wanted->>'ended')::integer, now
        );
    END IF;
    RETURN left_queue;
END
$$;

-- A session that takes a token again has it as its newest.
CREATE FUNCTION outlast.take_tokens(wanted jsonb, owner text, session bigint) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    IF wanted ? 'tokens' THEN
        DELETE FROM outlast.tokens AS t
         WHERE t.tenant = owner AND t.sid = session AND wanted->'tokens' ? t.token;
        INSERT INTO outlast.tokens (tenant, token, sid, living)
        SELECT owner, w.token, session, true
          FROM jsonb_array_elements_text(wanted->'tokens') WITH ORDINALITY AS w (token, place)
         GROUP BY w.token
         ORDER BY max(w.place);
    END IF;
    IF wanted ? 'revoked' THEN
        UPDATE outlast.tokens AS t
           SET living = false
         WHERE t.tenant = owner AND t.sid = session AND t.living AND wanted->'revoked' ? t.token;
    END IF;
END
$$;

-- Holds that are taken or changed, in their order. Should another transaction have taken one
-- since it was looked for, the group is tried again, and finds it.
CREATE FUNCTION outlast.put_effects(wanted jsonb, owner text) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    hold record;
BEGIN
    FOR hold IN
        SELECT *
          FROM jsonb_to_recordset(wanted)
                   AS x (scope text, key text, session_id text, call_id text, state text, value text)
    LOOP
        INSERT INTO outlast.effects AS e (tenant, scope, key, session_id, call_id, state, value)
        VALUES (owner, hold.scope, hold.key, hold.session_id, hold.call_id, hold.state, hold.value)
            ON CONFLICT (scope, key, tenant) DO UPDATE
           SET session_id = excluded.session_id,
               call_id = excluded.call_id,
               state = excluded.state,
               value = excluded.value
         WHERE e.state = 'free'
            OR (e.session_id, e.call_id) = (excluded.session_id, excluded.call_id);
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another call was quicker' USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
END
$$;

-- Lanes share the slices: one that comes late with an older fold does not undo a newer one.
CREATE FUNCTION outlast.put_snapshots(
    wanted jsonb, data bytea, owner text, session bigint, name text
) RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO outlast.snapshots (tenant, sid, lane, up_to, fold, data)
    SELECT owner, session, name, n.up_to, n.fold, substr(data, n.start + 1, n.size)
      FROM jsonb_to_record(wanted->'snapshot')
               AS n (up_to integer, fold integer, start integer, size integer)
     WHERE wanted ? 'snapshot'
        ON CONFLICT (tenant, sid, lane) DO UPDATE
       SET up_to = excluded.up_to, fold = excluded.fold, data = excluded.data;

    INSERT INTO outlast.slices AS c (tenant, sid, up_to, fold, data)
    SELECT owner, session, n.up_to, n.fold, substr(data, n.start + 1, n.size)
      FROM jsonb_to_record(wanted->'slices')
               AS n (up_to integer, fold integer, start integer, size integer)
     WHERE wanted ? 'slices'
        ON CONFLICT (tenant, sid) DO UPDATE
       SET up_to = excluded.up_to, fold = excluded.fold, data = excluded.data
     WHERE excluded.up_to >= c.up_to OR excluded.fold <> c.fold;
$$;

-- What ended stays ended as it did. For each of the session's other lanes its end is
-- something that arrived.
CREATE FUNCTION outlast.end_session(
    owner text, session bigint, name text, how text, ended integer, now bigint
) RETURNS void
    LANGUAGE sql
AS $$
    UPDATE outlast.sessions AS s
       SET over = how
     WHERE s.tenant = owner AND s.sid = session AND s.over = '';
    UPDATE outlast.tokens AS t
       SET living = false
     WHERE t.tenant = owner AND t.sid = session AND t.living;
    UPDATE outlast.lanes AS l
       SET last_arrival = ended, ready_at = least(l.ready_at, now)
     WHERE l.tenant = owner AND l.sid = session AND l.lane <> name;
$$;

-- The plain commits of a group: those that change no index, one for each session, whose
-- lanes are their owners' and have had no arrival unseen. Returns the places of those that
-- were written, with their answers; `commit` says what becomes of the others.
--
-- The plan is made once and has to be right whatever the tables grow to. So nothing is left
-- to choose: each row is looked up by its key and locked, one after the other, and changed
-- where it was found.
CREATE FUNCTION outlast.commit_plain(wanted jsonb, data bytea)
    RETURNS TABLE (place bigint, answer jsonb)
    LANGUAGE plpgsql ROWS 100
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH
        found AS (
            SELECT w.*, s.tenant, s.sid, s.row AS session_row, n.row AS lane_row,
                   s.last_offset + 1 AS first_new, greatest(w.at, s.last_at) AS written_at
              FROM ROWS FROM (jsonb_to_recordset(wanted) AS (
                       plain boolean, session text, lane text, worker text, fence bigint,
                       number bigint, seen integer, at bigint, ready_at bigint, release boolean,
                       status text, turn text, version integer, digest text, count integer,
                       marks smallint, start integer, size integer
                   )) WITH ORDINALITY AS w (
                       plain, session, lane, worker, fence, number, seen, at, ready_at, release,
                       status, turn, version, digest, count, marks, start, size, place
                   )
             CROSS JOIN LATERAL (
                       SELECT r.ctid AS row, r.tenant, r.sid, r.last_offset, r.last_at
                         FROM outlast.sessions AS r
                        WHERE r.id = w.session
                          FOR NO KEY UPDATE
                   ) AS s
             CROSS JOIN LATERAL (
                       SELECT l.ctid AS row, l.worker, l.fence, l.number, l.last_arrival
                         FROM outlast.lanes AS l
                        WHERE l.tenant = s.tenant AND l.sid = s.sid AND l.lane = w.lane
                          FOR NO KEY UPDATE
                   ) AS n
             WHERE w.plain
               AND n.worker = w.worker
               AND n.fence = w.fence
               AND n.number = w.number
               AND n.last_arrival <= w.seen
        ),
        moved AS (
            UPDATE outlast.lanes AS n
               SET number = n.number + 1,
                   status = f.status,
                   turn = f.turn,
                   ready_at = f.ready_at,
                   version = greatest(n.version, f.version),
                   digest = decode(f.digest, 'hex'),
                   commit_offset = f.first_new,
                   commit_at = f.written_at,
                   worker = CASE WHEN f.release THEN NULL ELSE n.worker END
              FROM found AS f
             WHERE n.ctid = f.lane_row
        ),
        counted AS (
            UPDATE outlast.sessions AS s
               SET last_offset = s.last_offset + f.count, last_at = f.written_at
              FROM found AS f
             WHERE s.ctid = f.session_row AND f.count > 0
        ),
        added AS (
            INSERT INTO outlast.log (tenant, sid, first_offset, count, lane, at, marks, data)
            SELECT f.tenant, f.sid, f.first_new, f.count, f.lane, f.written_at, f.marks,
                   substr(data, f.start + 1, f.size)
              FROM found AS f
             WHERE f.count > 0
        )
    SELECT f.place, jsonb_build_array('written', f.first_new, f.written_at, f.tenant, '[]'::jsonb)
      FROM found AS f;
END
$$;
-- Let calls begin as far as their limits allow, in the order in which they asked. A wish is
-- granted under all its limits, or queued at the first that has no place. The answers are
-- ["granted"], ["waits", when to ask again or null] and ["lease_lost"].
CREATE FUNCTION outlast.acquire(wishes jsonb) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    wish jsonb;
    l record;
    bound record;
    answer jsonb;
    answers jsonb[] := '{}';
BEGIN
    FOR wish IN SELECT w FROM jsonb_array_elements(wishes) AS w LOOP
        SELECT n.tenant, n.sid, n.lane
          INTO l
          FROM outlast.sessions AS s
          JOIN outlast.lanes AS n ON n.tenant = s.tenant AND n.sid = s.sid
         WHERE s.id = wish->>'session_id'
           AND n.lane = wish->>'lane'
           AND n.worker = wish->>'worker'
           AND n.fence = (wish->>'fence')::bigint;
        IF NOT FOUND THEN
            answers := answers || '["lease_lost"]'::jsonb;
            CONTINUE;
        END IF;
        answer := '["granted"]';
        FOR bound IN
            SELECT *
              FROM jsonb_to_recordset(wish->'bounds')
                       AS b (name text, concurrency integer, rate integer, per bigint)
        LOOP
            answer := outlast.ask_for_permit(
                l.tenant, l.sid, l.lane, wish->>'call_id',
                bound.name, bound.concurrency, bound.rate, bound.per
            );
            EXIT WHEN answer->>0 <> 'granted';
        END LOOP;
        answers := answers || answer;
    END LOOP;
    RETURN to_jsonb(answers);
END
$$;

-- A permit under one limit. A call that asks for the first time goes to the end of its queue.
CREATE FUNCTION outlast.ask_for_permit(
    owner text, session bigint, lane_name text, call text,
    limit_name text, concurrency integer, rate integer, per bigint
) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    now bigint := outlast.now_ms();
    paid bigint;
    mine record;
    running bigint;
    ahead bigint;
    start_at bigint := now;
BEGIN
    INSERT INTO outlast.limits (name) VALUES (limit_name) ON CONFLICT DO NOTHING;
    SELECT m.paid_until INTO paid FROM outlast.limits AS m WHERE m.name = limit_name FOR UPDATE;
    INSERT INTO outlast.permits AS p (name, tenant, sid, lane, call_id, most, held)
    VALUES (limit_name, owner, session, lane_name, call, concurrency, false)
        ON CONFLICT (tenant, sid, lane, call_id, name) DO UPDATE SET most = excluded.most
    RETURNING p.pid, p.held INTO mine;
    IF mine.held THEN
        RETURN '["granted"]';
    END IF;
    SELECT count(*) INTO running FROM outlast.permits AS p WHERE p.name = limit_name AND p.held;
    SELECT count(*) INTO ahead
      FROM outlast.permits AS p
     WHERE p.name = limit_name AND NOT p.held AND p.pid < mine.pid;
    IF concurrency > 0 AND running + ahead >= concurrency THEN
        RETURN '["waits", null]';
    END IF;
    IF rate > 0 THEN
        start_at := floor(
            greatest(paid, now) + (ahead + 1) * per::double precision / rate - per + 0.999
        );
        IF start_at > now THEN
            RETURN jsonb_build_array('waits', start_at);
        END IF;
        UPDATE outlast.limits AS m
           SET paid_until = greatest(paid, now)
                            + greatest(1, round(per::double precision / rate)::bigint)
         WHERE m.name = limit_name;
    END IF;
    IF concurrency > 0 THEN
        UPDATE outlast.permits AS p
           SET held = true
         WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name
           AND p.call_id = call AND p.name = limit_name;
    ELSE
        DELETE FROM outlast.permits AS p
         WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name
           AND p.call_id = call AND p.name = limit_name;
    END IF;
    RETURN '["granted"]';
END
$$;

-- Take back the permits and places of calls that commits have freed, and wake who has a place
-- by that; returns the sessions of those. A lane that somebody has in hand is passed over:
-- its owner is awake, or is about to rest, waits for the limit and will look again.
CREATE FUNCTION outlast.free_permits(commits jsonb) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    now bigint;
    names text[];
    woken jsonb;
BEGIN
    IF commits = '[]' THEN
        RETURN commits;
    END IF;
    now := outlast.now_ms();
    SELECT array_agg(DISTINCT p.name) INTO names
      FROM jsonb_to_recordset(commits) AS c (session text, lane text, frees jsonb)
      JOIN outlast.sessions AS s ON s.id = c.session
      JOIN outlast.permits AS p ON p.tenant = s.tenant AND p.sid = s.sid AND p.lane = c.lane
     WHERE c.frees ? p.call_id;
    PERFORM 1 FROM outlast.limits AS m WHERE m.name = ANY (names) ORDER BY m.name FOR UPDATE;
    DELETE FROM outlast.permits AS p
     USING jsonb_to_recordset(commits) AS c (session text, lane text, frees jsonb),
           outlast.sessions AS s
     WHERE s.id = c.session
       AND p.tenant = s.tenant AND p.sid = s.sid AND p.lane = c.lane AND c.frees ? p.call_id;
    WITH
        free AS (
            SELECT l.tenant, l.sid, l.lane
              FROM outlast.lanes AS l
             WHERE (l.tenant, l.sid, l.lane) IN (SELECT w.tenant, w.sid, w.lane
                                                   FROM outlast.with_a_place(names) AS w)
               FOR NO KEY UPDATE SKIP LOCKED
        ),
        ready AS (
            UPDATE outlast.lanes AS l
               SET ready_at = least(l.ready_at, now)
              FROM free AS f
             WHERE l.tenant = f.tenant AND l.sid = f.sid AND l.lane = f.lane
        )
    SELECT coalesce(jsonb_agg(DISTINCT s.id), '[]') INTO woken
      FROM outlast.with_a_place(names) AS w
      JOIN outlast.sessions AS s ON s.tenant = w.tenant AND s.sid = w.sid;
    RETURN woken;
END
$$;

-- The lanes whose calls have a place under one of the limits now.
CREATE FUNCTION outlast.with_a_place(names text[])
    RETURNS TABLE (tenant text, sid bigint, lane text)
    LANGUAGE sql STABLE
AS $$
    SELECT w.tenant, w.sid, w.lane
      FROM (SELECT p.name, p.tenant, p.sid, p.lane, p.most,
                   row_number() OVER (PARTITION BY p.name ORDER BY p.pid) AS place
              FROM outlast.permits AS p
             WHERE p.name = ANY (names) AND NOT p.held AND p.most > 0) AS w
     WHERE w.place + (SELECT count(*)
                        FROM outlast.permits AS p
                       WHERE p.name = w.name AND p.held) <= w.most
$$;

-- Whether a call of a lane that waits has a place under its limit now. The limits are held to
-- the transaction's end: who frees a permit meanwhile finds the lane at rest, and wakes it.
CREATE FUNCTION outlast.has_permit_to_come(owner text, session bigint, lane_name text)
    RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    names text[];
BEGIN
    SELECT array_agg(DISTINCT p.name) INTO names
      FROM outlast.permits AS p
     WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name AND NOT p.held;
    PERFORM 1 FROM outlast.limits AS m WHERE m.name = ANY (names) ORDER BY m.name FOR UPDATE;
    RETURN EXISTS (SELECT 1
                     FROM outlast.with_a_place(names) AS w
                    WHERE w.tenant = owner AND w.sid = session AND w.lane = lane_name);
END
$$;
-- What a fold needs, from one state of the database: first the session itself (its end and
-- the time of its last record), then the snapshots made by today's rules, then the rows of
-- the log after the older of both that concern the lane: its own, and those of others that
-- change slices, start or end the session. With `after` the rows alone, from there on.
CREATE FUNCTION outlast.load(session text, name text, today integer, after integer)
    RETURNS TABLE (kind text, first_offset integer, count integer, lane text, at bigint, data bytea)
    LANGUAGE plpgsql STABLE ROWS 100
AS $$
DECLARE
    s record;
    snapshot record;
    slices record;
    start integer := after;
BEGIN
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = session;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT 'session', s.last_offset, 0, s.tenant::text, s.last_at, NULL::bytea;
    IF start IS NULL THEN
        SELECT n.up_to, n.fold, n.data
          INTO snapshot
          FROM outlast.snapshots AS n
         WHERE n.tenant = s.tenant AND n.sid = s.sid AND n.lane = name AND n.fold = today;
        SELECT n.up_to, n.fold, n.data
          INTO slices
          FROM outlast.slices AS n
         WHERE n.tenant = s.tenant AND n.sid = s.sid AND n.fold = today;
        RETURN QUERY
        SELECT k.kind, k.up_to, k.fold, NULL, NULL::bigint, k.data
          FROM (VALUES ('snapshot', snapshot.up_to, snapshot.fold, snapshot.data),
                       ('slices', slices.up_to, slices.fold, slices.data))
                   AS k (kind, up_to, fold, data)
         WHERE k.up_to IS NOT NULL;
        start := least(coalesce(snapshot.up_to, 0), coalesce(slices.up_to, 0));
    END IF;
    RETURN QUERY
    SELECT 'log', g.first_offset, g.count, g.lane::text, g.at, g.data
      FROM outlast.log AS g
     WHERE g.tenant = s.tenant
       AND g.sid = s.sid
       AND g.first_offset >= outlast.row_with(s.tenant, s.sid, start + 1)
       AND (g.lane = name OR g.marks & 6 > 0)
     ORDER BY g.first_offset;
END
$$;

-- A page of the log after a cursor: the session as above, then whole rows until they hold
-- about as many records as wanted.
CREATE FUNCTION outlast.read(session text, after integer, most integer)
    RETURNS TABLE (kind text, first_offset integer, count integer, lane text, at bigint, data bytea)
    LANGUAGE plpgsql STABLE ROWS 100
AS $$
DECLARE
    s record;
BEGIN
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = session;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT 'session', s.last_offset, 0, s.tenant::text, s.last_at, NULL::bytea;
    IF after >= s.last_offset THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'log', p.first_offset, p.count, p.lane::text, p.at, p.data
      FROM (SELECT g.*,
                   sum(least(g.count, g.first_offset + g.count - 1 - after))
                       OVER (ORDER BY g.first_offset ROWS UNBOUNDED PRECEDING) AS held
              FROM (SELECT b.first_offset, b.count, b.lane, b.at, b.data
                      FROM outlast.log AS b
                     WHERE b.tenant = s.tenant
                       AND b.sid = s.sid
                       AND b.first_offset >= outlast.row_with(s.tenant, s.sid, after + 1)
                     ORDER BY b.first_offset
                     LIMIT greatest(most, 1)) AS g) AS p
     WHERE p.held - least(p.count, p.first_offset + p.count - 1 - after) < greatest(most, 1)
     ORDER BY p.first_offset;
END
$$;

-- A page of the log before an offset, newest row first.
CREATE FUNCTION outlast.read_back(session text, before integer, most integer)
    RETURNS TABLE (kind text, first_offset integer, count integer, lane text, at bigint, data bytea)
    LANGUAGE plpgsql STABLE ROWS 100
AS $$
DECLARE
    s record;
BEGIN
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = session;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT 'session', s.last_offset, 0, s.tenant::text, s.last_at, NULL::bytea;
    RETURN QUERY
    SELECT 'log', p.first_offset, p.count, p.lane::text, p.at, p.data
      FROM (SELECT g.*,
                   sum(least(g.count, before - g.first_offset))
                       OVER (ORDER BY g.first_offset DESC ROWS UNBOUNDED PRECEDING) AS held
              FROM (SELECT b.first_offset, b.count, b.lane, b.at, b.data
                      FROM outlast.log AS b
                     WHERE b.tenant = s.tenant AND b.sid = s.sid AND b.first_offset < before
                     ORDER BY b.first_offset DESC
                     LIMIT greatest(most, 1)) AS g) AS p
     WHERE p.held - least(p.count, before - p.first_offset) < greatest(most, 1)
     ORDER BY p.first_offset DESC;
END
$$;

-- Where the row begins that holds an offset, or the offset itself if no row does yet.
CREATE FUNCTION outlast.row_with(owner text, session bigint, wanted integer) RETURNS integer
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN coalesce((SELECT max(g.first_offset)
                       FROM outlast.log AS g
                      WHERE g.tenant = owner AND g.sid = session AND g.first_offset <= wanted),
                    wanted);
END
$$;
-- A group of commits and admissions: one call, one transaction, one round trip. `wanted` is
-- what each of them says, and `data` all their bytes, of which each names its parts. The
-- answers come in the same order, and with them the ids of sessions that somebody was woken in.
-- Sessions are locked first, by id: whoever writes to
-- several does so in this order, and then takes their lanes in the same order.
--
-- Commits that only move their lane and add to the log are written all at once, if nothing
-- stands against them. All else is done one by one, and so is whatever that left.
CREATE FUNCTION outlast.write(wanted jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    one jsonb;
    place bigint;
    answers jsonb[];
    freeing jsonb := '[]';
BEGIN
    IF jsonb_array_length(wanted) > 1 THEN
        PERFORM 1
           FROM outlast.sessions AS s
          WHERE s.id IN (SELECT w->>'session' FROM jsonb_array_elements(wanted) AS w)
          ORDER BY s.id
            FOR NO KEY UPDATE;
    END IF;
    answers := array_fill(NULL::jsonb, ARRAY[jsonb_array_length(wanted)]);
    FOR place, one IN SELECT * FROM outlast.commit_plain(wanted, data) LOOP
        answers[place] := one;
    END LOOP;
    FOR one, place IN SELECT * FROM jsonb_array_elements(wanted) WITH ORDINALITY LOOP
        CONTINUE WHEN answers[place] IS NOT NULL;
        answers[place] := CASE WHEN one ? 'fence' THEN outlast.commit(one, data)
                               ELSE outlast.admit(one, data) END;
        IF one ? 'frees' AND answers[place]->>0 = 'written' THEN
            freeing := freeing || one;
        END IF;
    END LOOP;
    RETURN jsonb_build_object(
        'answers', to_jsonb(answers), 'woken', outlast.free_permits(freeing)
    );
END
$$;

-- Blobs that are new are kept, and those that are there touched: they are needed again.
CREATE FUNCTION outlast.keep_blobs(owner text, wanted jsonb, data bytea, now bigint)
    RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO outlast.blobs AS b (tenant, hash, touched_at, data)
    SELECT owner, decode(w.hash, 'hex'), now, substr(data, w.start + 1, w.size)
      FROM jsonb_to_recordset(wanted) AS w (hash text, start integer, size integer)
     ORDER BY w.hash
        ON CONFLICT (tenant, hash) DO UPDATE
       SET touched_at = greatest(b.touched_at, excluded.touched_at)
$$;

-- What others added to a lane after the last arrival that its owner has seen: the rows of
-- the log that hold it. The first may begin before it.
CREATE FUNCTION outlast.arrivals(
    owner text, session bigint, name text, seen integer, last integer
) RETURNS jsonb
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF last <= seen THEN
        RETURN '[]';
    END IF;
    RETURN (
        SELECT coalesce(
                   jsonb_agg(
                       jsonb_build_array(g.first_offset, g.at, encode(g.data, 'hex'))
                       ORDER BY g.first_offset
                   ),
                   '[]'
               )
          FROM outlast.log AS g
         WHERE g.tenant = owner
           AND g.sid = session
           AND g.first_offset <= last
           AND g.first_offset >= coalesce((SELECT max(b.first_offset)
                                             FROM outlast.log AS b
                                            WHERE b.tenant = owner
                                              AND b.sid = session
                                              AND b.first_offset <= seen + 1), seen + 1)
           AND g.first_offset + g.count - 1 > seen
           AND g.marks & 1 = 1
           AND g.lane = name
    );
END
$$;
