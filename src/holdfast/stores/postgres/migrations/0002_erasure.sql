-- Sessions can be erased, with the blobs that only they used; outlets tell of events outside;
-- keys open the server; a lane says what it waits for, and a worker what it has counted. Agents
-- hand work to others, sign in elsewhere and act by the calendar: children, secrets, schedules.
--
-- Lanes come first: whoever writes to the log has touched them, so from there on nobody is at
-- it. Who was about to goes on with what it finds here: the functions that an older Holdfast
-- asks for take what they took.
ALTER TABLE holdfast.lanes ADD COLUMN wait text NOT NULL DEFAULT '';
ALTER TABLE holdfast.workers ADD COLUMN tally text NOT NULL DEFAULT '';
ALTER TABLE holdfast.blobs DROP COLUMN touched_at;

CREATE TABLE holdfast.blob_uses (
    tenant text COLLATE "C" NOT NULL,
    hash bytea NOT NULL,
    sid bigint NOT NULL,
    PRIMARY KEY (tenant, hash, sid)
);

CREATE INDEX blob_uses_of_session ON holdfast.blob_uses (tenant, sid);

-- Who uses the blobs that are there is only in the logs, compressed. They get a user that is
-- never erased, and so they stay, even when all sessions are gone that used them.
INSERT INTO holdfast.blob_uses (tenant, hash, sid)
SELECT b.tenant, b.hash, 0 FROM holdfast.blobs AS b;

CREATE TABLE holdfast.outlets (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    url text NOT NULL,
    events jsonb NOT NULL,
    cursor integer NOT NULL DEFAULT 0,
    told bigint NOT NULL DEFAULT 0,
    due_at bigint,
    held bigint NOT NULL DEFAULT 0,
    held_until bigint NOT NULL DEFAULT 0,
    tries integer NOT NULL DEFAULT 0,
    error text NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, sid, name)
) WITH (fillfactor = 60);

CREATE INDEX outlets_due ON holdfast.outlets (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outlets_failing ON holdfast.outlets (tenant, sid) WHERE tries > 0;

CREATE TABLE holdfast.dead_letters (
    number bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    outlet text COLLATE "C" NOT NULL,
    event_offset integer NOT NULL,
    type text NOT NULL,
    error text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (tenant, sid, outlet, event_offset)
);

CREATE INDEX dead_letters_in_order ON holdfast.dead_letters (number);
CREATE INDEX dead_letters_of_tenant ON holdfast.dead_letters (tenant, number);

CREATE TABLE holdfast.keys (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    scopes jsonb NOT NULL,
    digest text NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (id, tenant)
);

CREATE TABLE holdfast.children (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    parent text COLLATE "C" NOT NULL CHECK (parent <> ''),
    doomed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, sid)
);

CREATE INDEX children_of_parent ON holdfast.children (parent, sid);
CREATE INDEX children_doomed ON holdfast.children (sid) WHERE doomed;

CREATE TABLE holdfast.secrets (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    version bigint NOT NULL,
    expires_at bigint NOT NULL CHECK (expires_at >= 0),
    PRIMARY KEY (tenant, name)
);

CREATE INDEX secrets_expiring ON holdfast.secrets (expires_at) WHERE expires_at > 0;

CREATE TABLE holdfast.holds (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    holder text COLLATE "C" NOT NULL,
    held_until bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE holdfast.schedules (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    fingerprint text NOT NULL,
    next_at bigint,
    paused boolean NOT NULL,
    fired_at bigint NOT NULL,
    session_id text COLLATE "C" NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX requests_open_of_tenant ON holdfast.requests (tenant, rid) WHERE state = 'open';
CREATE INDEX tokens_dead ON holdfast.tokens (tenant, token, tid) WHERE NOT living;
CREATE INDEX effects_of_session ON holdfast.effects (tenant, session_id);

CREATE OR REPLACE VIEW holdfast.session_list AS
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
                    FROM holdfast.lanes AS l
                   WHERE l.tenant = s.tenant AND l.sid = s.sid)
       END AS status,
       coalesce((SELECT t.token
                   FROM holdfast.tokens AS t
                  WHERE t.tenant = s.tenant AND t.sid = s.sid AND t.living
                  ORDER BY t.tid DESC
                  LIMIT 1), '') AS token,
       coalesce((SELECT c.parent
                   FROM holdfast.children AS c
                  WHERE c.tenant = s.tenant AND c.sid = s.sid), '') AS parent,
       (SELECT jsonb_agg(jsonb_build_array(l.lane, CASE WHEN l.status = 'idle' AND l.queued > 0
                                                        THEN 'queued' ELSE l.status END,
                                           l.turn, coalesce(l.worker, ''), l.fence, l.ready_at,
                                           l.queued)
                         ORDER BY l.lid)
          FROM holdfast.lanes AS l
         WHERE l.tenant = s.tenant AND l.sid = s.sid)::text AS lanes
  FROM holdfast.sessions AS s;

DROP FUNCTION holdfast.keep_blobs(text, jsonb, bytea, bigint);

-- One arrival: checked first, then written, so that a refusal finds nothing written. The
-- answer is one of ["admitted", offset, position], ["repeated", same content, session, lane,
-- delivery, offset, position], ["erased"] for a repeated one whose session is gone, ["turn",
-- turn] for a cancel that was made out to another turn than the one that is open, and a refusal
-- with what it is about.
CREATE OR REPLACE FUNCTION holdfast.admit(wanted jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    w record;
    s record;
    l record;
    earlier record;
    request record;
    now bigint := holdfast.now_ms();
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
      FROM holdfast.find_delivery(w.tenant, decode(w.name, 'hex'), w.delivery) AS d
      LEFT JOIN holdfast.sessions AS r ON r.tenant = d.tenant AND r.sid = d.sid;
    IF FOUND AND earlier.session IS NULL THEN
        RETURN '["erased"]';
    ELSIF FOUND THEN
        RETURN jsonb_build_array(
            'repeated', earlier.fingerprint = decode(w.fingerprint, 'hex'),
            earlier.session, earlier.lane, earlier.id, earlier.arrival, earlier.position
        );
    END IF;

    SELECT r.tenant, r.sid, r.agent, r.over, r.last_offset, r.last_at
      INTO s
      FROM holdfast.sessions AS r
     WHERE r.id = w.session
       FOR NO KEY UPDATE;
    IF s.sid IS NULL AND w.name IS NULL AND EXISTS (
        SELECT 1
          FROM holdfast.dispatches AS p
         WHERE p.tenant = w.tenant AND p.name = holdfast.name_of(w.delivery)
    ) THEN
        RETURN '["erased"]';
    END IF;
    IF w.new THEN
        IF s.sid IS NOT NULL THEN
            RETURN '["exists"]';
        ELSIF w.token <> '' AND EXISTS (
            SELECT 1
              FROM holdfast.tokens AS t
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
            PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.' || w.tenant, 0));
        END IF;
        IF w.most_queued <= (SELECT coalesce(sum(n.queued), 0)
                               FROM holdfast.lanes AS n
                              WHERE n.tenant = s.tenant AND n.sid = s.sid) THEN
            RETURN '["queue_full", "session"]';
        ELSIF w.most_queued_of_tenant <= (SELECT coalesce(sum(n.queued), 0)
                                            FROM holdfast.lanes AS n
                                           WHERE n.tenant = w.tenant AND n.queued > 0) THEN
            RETURN '["queue_full", "tenant"]';
        END IF;
    END IF;
    IF w.kind = 'reply' THEN
        SELECT CASE WHEN q.state = 'open' AND q.expires_at > 0 AND q.expires_at <= now
                    THEN 'expired' ELSE q.state END AS state
          INTO request
          FROM holdfast.requests AS q
         WHERE q.id = w.request AND q.tenant = w.tenant AND q.sid = s.sid;
        IF request.state IS NULL THEN
            RETURN '["unknown_request"]';
        ELSIF request.state <> 'open' THEN
            RETURN jsonb_build_array('closed', request.state);
        END IF;
    END IF;
    SELECT n.turn, n.queued
      INTO l
      FROM holdfast.lanes AS n
     WHERE n.tenant = w.tenant AND n.sid = s.sid AND n.lane = w.lane
       FOR NO KEY UPDATE;
    IF w.turn IS NOT NULL AND w.turn <> coalesce(l.turn, '') THEN
        RETURN jsonb_build_array('turn', coalesce(l.turn, ''));
    END IF;

    arrived := coalesce(s.last_offset, 0) + w.count;
    w.at := greatest(w.at, s.last_at);
    IF w.new THEN
        INSERT INTO holdfast.sessions (tenant, id, agent, mode, created_at, last_offset, last_at)
        VALUES (w.tenant, w.session, w.agent, w.mode, w.at, arrived, w.at)
        RETURNING tenant, sid, agent, over, last_offset, last_at INTO s;
        IF w.token <> '' THEN
            INSERT INTO holdfast.tokens (tenant, token, sid, living)
            VALUES (w.tenant, w.token, s.sid, true);
        END IF;
        IF wanted ? 'outlets' THEN
            INSERT INTO holdfast.outlets (tenant, sid, name, url, events)
            SELECT w.tenant, s.sid, o.name, coalesce(o.url, ''), o.events
              FROM jsonb_to_recordset(wanted->'outlets') AS o (name text, url text, events jsonb);
        END IF;
        IF wanted ? 'parent' THEN
            INSERT INTO holdfast.children (tenant, sid, parent)
            VALUES (w.tenant, s.sid, wanted->>'parent');
        END IF;
    ELSE
        UPDATE holdfast.sessions AS r
           SET last_offset = arrived, last_at = w.at
         WHERE r.tenant = s.tenant AND r.sid = s.sid;
    END IF;
    before := coalesce(l.queued, 0);
    -- An arrival makes its lane ready at once. An owned lane too: were its owner to die
    -- before it saw the arrival, nobody else would come for it.
    INSERT INTO holdfast.lanes AS n
           (tenant, sid, lane, agent, last_arrival, ready_at, version, status, queued)
    VALUES (w.tenant, s.sid, w.lane, s.agent, arrived, now, w.version, 'idle',
            (w.kind IN ('message', 'retry'))::integer)
        ON CONFLICT (tenant, sid, lane) DO UPDATE
       SET last_arrival = excluded.last_arrival,
           ready_at = least(n.ready_at, excluded.ready_at),
           version = greatest(n.version, excluded.version),
           queued = n.queued + excluded.queued;
    INSERT INTO holdfast.log (tenant, sid, first_offset, count, lane, at, marks, data)
    VALUES (w.tenant, s.sid, arrived - w.count + 1, w.count, w.lane, w.at, w.marks,
            substr(data, w.start + 1, w.size));
    INSERT INTO holdfast.deliveries
           (tenant, sid, arrival, id, lane, kind, position, state, fingerprint)
    VALUES (w.tenant, s.sid, arrived, w.delivery, w.lane, w.kind, before, 'queued',
            decode(w.fingerprint, 'hex'));
    IF w.name IS NOT NULL THEN
        INSERT INTO holdfast.dispatches (tenant, name, sid, arrival)
        VALUES (w.tenant, decode(w.name, 'hex'), s.sid, arrived);
    END IF;
    IF w.kind = 'reply' THEN
        UPDATE holdfast.requests AS q
           SET state = 'answered', answered_offset = arrived
         WHERE q.id = w.request AND q.tenant = w.tenant;
    END IF;
    IF wanted ? 'blobs' THEN
        PERFORM holdfast.use_blobs(w.tenant, s.sid, wanted->'blobs');
    END IF;
    RETURN jsonb_build_array('admitted', arrived, before);
END
$$;

-- What a dispatch was admitted as before: by the name that its caller chose, or by the id
-- of the delivery, which is what Holdfast itself names it by. Of a name whose session was
-- erased there is a row of nothing.
CREATE OR REPLACE FUNCTION holdfast.find_delivery(owner text, dispatch bytea, delivery text)
    RETURNS SETOF holdfast.deliveries
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF dispatch IS NULL THEN
        RETURN QUERY SELECT * FROM holdfast.deliveries AS d WHERE d.id = delivery;
    ELSE
        RETURN QUERY
        SELECT d.*
          FROM holdfast.dispatches AS p
          LEFT JOIN holdfast.deliveries AS d
            ON d.tenant = p.tenant AND d.sid = p.sid AND d.arrival = p.arrival
         WHERE p.tenant = owner AND p.name = dispatch;
    END IF;
END
$$;

-- The name under which a delivery that was erased is remembered.
CREATE FUNCTION holdfast.name_of(delivery text) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    RETURN substr(sha256(convert_to('delivery ' || delivery, 'UTF8')), 1, 16);

-- Keep the blobs of a group that are new, and hold all of them until it is done: first, and in
-- the order in which everybody does. Who erases the last session that used one waits for this,
-- or this for him; one that was there when it was looked for is new again after that.
CREATE FUNCTION holdfast.lay_blobs(wanted jsonb, data bytea) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
DECLARE
    owners text[];
    hashes bytea[];
    starts integer[];
    sizes integer[];
    held integer;
BEGIN
    SELECT array_agg(u.tenant), array_agg(u.hash), array_agg(u.start), array_agg(u.size)
      INTO owners, hashes, starts, sizes
      FROM (SELECT DISTINCT ON (1, 2) coalesce(w->>'tenant', s.tenant) AS tenant,
                   decode(x.hash, 'hex') AS hash, x.start, x.size
              FROM jsonb_array_elements(wanted) AS w
              LEFT JOIN holdfast.sessions AS s ON s.id = w->>'session'
             CROSS JOIN LATERAL jsonb_to_recordset(w->'blobs')
                        AS x (hash text, start integer, size integer)) AS u
     WHERE u.tenant IS NOT NULL;
    LOOP
        INSERT INTO holdfast.blobs (tenant, hash, data)
        SELECT u.tenant, u.hash, substr(data, u.start + 1, u.size)
          FROM unnest(owners, hashes, starts, sizes) AS u (tenant, hash, start, size)
         ORDER BY u.tenant COLLATE "C", u.hash
            ON CONFLICT (tenant, hash) DO NOTHING;
        PERFORM 1
           FROM unnest(owners, hashes) AS u (tenant, hash)
           JOIN holdfast.blobs AS b ON b.tenant = u.tenant AND b.hash = u.hash
          ORDER BY b.tenant, b.hash
            FOR KEY SHARE OF b;
        GET DIAGNOSTICS held = ROW_COUNT;
        EXIT WHEN held = coalesce(cardinality(hashes), 0);
    END LOOP;
END
$$;

-- A session's log points at blobs, all of them laid down before.
CREATE FUNCTION holdfast.use_blobs(owner text, session bigint, wanted jsonb) RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO holdfast.blob_uses (tenant, hash, sid)
    SELECT owner, decode(w->>'hash', 'hex'), session
      FROM jsonb_array_elements(wanted) AS w
        ON CONFLICT DO NOTHING
$$;

-- What was laid down for entries that were refused is nobody's. Among what is given here may
-- be some that were not.
CREATE FUNCTION holdfast.clear_blobs(wanted jsonb) RETURNS void
    LANGUAGE sql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
    DELETE FROM holdfast.blobs AS b
     USING jsonb_array_elements(wanted) AS w
      LEFT JOIN holdfast.sessions AS s ON s.id = w->>'session'
     CROSS JOIN LATERAL jsonb_array_elements(w->'blobs') AS x
     WHERE b.tenant = coalesce(w->>'tenant', s.tenant)
       AND b.hash = decode(x->>'hash', 'hex')
       AND NOT EXISTS (SELECT 1
                         FROM holdfast.blob_uses AS u
                        WHERE u.tenant = b.tenant AND u.hash = b.hash)
$$;

-- Hold the blobs that a session uses against everybody, before they may be let go of.
CREATE FUNCTION holdfast.seize_blobs(owner text, session bigint) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
       FROM holdfast.blob_uses AS u
       JOIN holdfast.blobs AS b ON b.tenant = u.tenant AND b.hash = u.hash
      WHERE u.tenant = owner AND u.sid = session
      ORDER BY b.hash
        FOR UPDATE OF b;
END
$$;

-- Let go of a session's blobs, all of them seized, and remove those that no other uses.
CREATE FUNCTION holdfast.release_blobs(owner text, session bigint) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM holdfast.blobs AS b
     USING holdfast.blob_uses AS u
     WHERE u.tenant = owner AND u.sid = session
       AND b.tenant = u.tenant AND b.hash = u.hash
       AND NOT EXISTS (SELECT 1
                         FROM holdfast.blob_uses AS o
                        WHERE o.tenant = u.tenant AND o.hash = u.hash AND o.sid <> session);
    DELETE FROM holdfast.blob_uses AS u WHERE u.tenant = owner AND u.sid = session;
END
$$;

-- One commit of a lane's owner, whole or not at all. Whatever may refuse it is looked at
-- before the first write, so that the others of its group stand. The answer is one of
-- ["written", first offset, at, tenant, arrivals], ["arrivals", tenant, arrivals],
-- ["lease_lost"], ["token_taken"], ["slices_changed"] and ["effect_taken", effect]; ["turns",
-- [[place, turn]]] where it sends cancels that were made out to other turns than are open; and
-- ["absent"] where it was only asked whether the commit has landed.
CREATE OR REPLACE FUNCTION holdfast.commit(wanted jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    w record;
    s record;
    l record;
    now bigint := holdfast.now_ms();
    obstacle jsonb;
    first_new integer;
    written_at bigint;
    left_queue integer := 0;
BEGIN
    SELECT * INTO w
      FROM jsonb_to_record(wanted) AS x (
               session text, lane text, worker text, fence bigint, number bigint, seen integer,
               at bigint, ready_at bigint, release boolean, status text, turn text, wait text,
               version integer, digest text, count integer, marks smallint, start integer,
               size integer, is_indexed boolean, asks boolean
           );
    -- Two steps, each one in an index: no plan for a join can go wrong.
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM holdfast.sessions AS r
     WHERE r.id = w.session
       FOR NO KEY UPDATE;
    SELECT n.worker, n.fence, n.number, n.last_arrival, n.digest, n.commit_offset, n.commit_at
      INTO l
      FROM holdfast.lanes AS n
     WHERE n.tenant = s.tenant AND n.sid = s.sid AND n.lane = w.lane
       FOR NO KEY UPDATE;
    IF l.fence IS DISTINCT FROM w.fence THEN
        RETURN '["lease_lost"]';
    ELSIF l.number = w.number + 1 AND l.digest = decode(w.digest, 'hex') THEN
        RETURN jsonb_build_array(
            'written', l.commit_offset, l.commit_at, s.tenant,
            holdfast.arrivals(s.tenant, s.sid, w.lane, w.seen, l.last_arrival)
        );
    ELSIF w.asks THEN
        RETURN '["absent"]';
    ELSIF l.worker IS DISTINCT FROM w.worker OR l.number <> w.number THEN
        RETURN '["lease_lost"]';
    END IF;

    IF w.is_indexed THEN
        obstacle := holdfast.find_obstacle(wanted, s.tenant, s.sid, w.seen);
    END IF;
    -- Nobody parks or gives back a lane past something that he has not seen.
    IF obstacle IS NULL
       AND l.last_arrival > w.seen AND (w.ready_at IS NULL OR w.release) THEN
        obstacle := '["arrivals"]';
    ELSIF obstacle IS NULL AND wanted ? 'awaits_permit'
          AND holdfast.has_permit_to_come(s.tenant, s.sid, w.lane) THEN
        obstacle := '["arrivals"]';
    ELSIF obstacle IS NULL AND wanted @? '$.sends[*].turn' THEN
        obstacle := holdfast.find_other_turns(wanted->'sends');
    END IF;
    IF obstacle->>0 = 'arrivals' THEN
        RETURN obstacle || jsonb_build_array(
            s.tenant, holdfast.arrivals(s.tenant, s.sid, w.lane, w.seen, l.last_arrival)
        );
    ELSIF obstacle IS NOT NULL THEN
        RETURN obstacle;
    END IF;

    first_new := s.last_offset + 1;
    written_at := greatest(w.at, s.last_at);
    IF w.is_indexed THEN
        left_queue := holdfast.change_indexes(
            wanted, data, s.tenant, s.sid, w.lane, first_new, now
        );
    END IF;
    -- If something came that the owner has not seen, the lane is ready for whoever comes
    -- after it. `worker` is in no new value unless it changes: the row stays on its page.
    UPDATE holdfast.lanes AS n
       SET number = n.number + 1,
           status = w.status,
           turn = w.turn,
           wait = coalesce(w.wait, ''),
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
        UPDATE holdfast.sessions AS r
           SET last_offset = r.last_offset + w.count, last_at = written_at
         WHERE r.tenant = s.tenant AND r.sid = s.sid;
        INSERT INTO holdfast.log (tenant, sid, first_offset, count, lane, at, marks, data)
        VALUES (s.tenant, s.sid, first_new, w.count, w.lane, written_at, w.marks,
                substr(data, w.start + 1, w.size));
    END IF;
    IF wanted ? 'sends' THEN
        PERFORM holdfast.send(wanted->'sends', data);
    END IF;
    RETURN jsonb_build_array(
        'written', first_new, written_at, s.tenant,
        holdfast.arrivals(s.tenant, s.sid, w.lane, w.seen, l.last_arrival)
    );
END
$$;

-- All that a commit changes besides its lane and the log. Returns how many messages that
-- waited in the lane wait no longer.
CREATE OR REPLACE FUNCTION holdfast.change_indexes(
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
          FROM holdfast.deliveries AS d
         WHERE d.id = change.id AND d.tenant = owner;
        UPDATE holdfast.deliveries AS d
           SET state = change.state,
               outcome = change.outcome,
               turn = coalesce(change.turn, d.turn),
               settled_offset = first_new + change.settled
         WHERE d.id = change.id AND d.tenant = owner;
        left_queue := left_queue + coalesce(waited, false)::integer;
    END LOOP;

    INSERT INTO holdfast.requests (tenant, id, sid, lane, kind, state, expires_at, data)
    SELECT owner, q.id, session, name, q.kind, 'open', q.expires_at, q.data
      FROM jsonb_to_recordset(wanted->'opened')
               AS q (id text, kind text, expires_at bigint, data text);
    UPDATE holdfast.requests AS q
       SET state = c.how
      FROM jsonb_to_recordset(wanted->'closed') AS c (id text, how text)
     WHERE q.id = c.id AND q.tenant = owner;

    PERFORM holdfast.take_tokens(wanted, owner, session);
    PERFORM holdfast.put_effects(wanted->'effects', owner);
    PERFORM holdfast.put_snapshots(wanted, data, owner, session, name);
    IF wanted ? 'blobs' THEN
        PERFORM holdfast.use_blobs(owner, session, wanted->'blobs');
    END IF;
    IF wanted ? 'sliced' THEN
        UPDATE holdfast.sessions AS s
           SET slices_changed = first_new + (wanted->>'sliced')::integer
         WHERE s.tenant = owner AND s.sid = session;
    END IF;
    IF wanted ? 'over' THEN
        PERFORM holdfast.end_session(
            owner, session, name, wanted->>'over', first_new + (wanted->>'ended')::integer, now
        );
    END IF;
    RETURN left_queue;
END
$$;

-- The plain commits of a group: those that change no index, one for each session, whose
-- lanes are their owners' and have had no arrival unseen. Returns the places of those that
-- were written, with their answers; `commit` says what becomes of the others.
--
-- The plan is made once and has to be right whatever the tables grow to. So nothing is left
-- to choose: each row is looked up by its key and locked, one after the other, and changed
-- where it was found.
CREATE OR REPLACE FUNCTION holdfast.commit_plain(wanted jsonb, data bytea)
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
                       status text, turn text, wait text, version integer, digest text,
                       count integer, marks smallint, start integer, size integer
                   )) WITH ORDINALITY AS w (
                       plain, session, lane, worker, fence, number, seen, at, ready_at, release,
                       status, turn, wait, version, digest, count, marks, start, size, place
                   )
             CROSS JOIN LATERAL (
                       SELECT r.ctid AS row, r.tenant, r.sid, r.last_offset, r.last_at
                         FROM holdfast.sessions AS r
                        WHERE r.id = w.session
                          FOR NO KEY UPDATE
                   ) AS s
             CROSS JOIN LATERAL (
                       SELECT l.ctid AS row, l.worker, l.fence, l.number, l.last_arrival
                         FROM holdfast.lanes AS l
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
            UPDATE holdfast.lanes AS n
               SET number = n.number + 1,
                   status = f.status,
                   turn = f.turn,
                   wait = coalesce(f.wait, ''),
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
            UPDATE holdfast.sessions AS s
               SET last_offset = s.last_offset + f.count, last_at = f.written_at
              FROM found AS f
             WHERE s.ctid = f.session_row AND f.count > 0
        ),
        added AS (
            INSERT INTO holdfast.log (tenant, sid, first_offset, count, lane, at, marks, data)
            SELECT f.tenant, f.sid, f.first_new, f.count, f.lane, f.written_at, f.marks,
                   substr(data, f.start + 1, f.size)
              FROM found AS f
             WHERE f.count > 0
        )
    SELECT f.place, jsonb_build_array('written', f.first_new, f.written_at, f.tenant, '[]'::jsonb)
      FROM found AS f;
END
$$;

-- Take a session away with all that is known of it; the answer is the ids of sessions that
-- somebody was woken in, or nothing where there was no session.
--
-- Whoever writes to the session holds its row, so when this has it nobody is at it, and who
-- comes later finds no session. A claim, a wish for a permit and the settling of an outlet hold
-- less: a lane, an outlet. Those are taken first too, each before what hangs on it is deleted,
-- and every statement here sees what was written before it got its lock.
CREATE FUNCTION holdfast.erase(session text) RETURNS jsonb
    LANGUAGE plpgsql
    -- Plans that stay right whatever the tables grow to; for what is called from here too.
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
DECLARE
    s record;
    freeing jsonb;
BEGIN
    SELECT r.tenant, r.sid INTO s FROM holdfast.sessions AS r WHERE r.id = session FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM holdfast.seize_blobs(s.tenant, s.sid);
    PERFORM 1
       FROM holdfast.lanes AS l
      WHERE l.tenant = s.tenant AND l.sid = s.sid
      ORDER BY l.lane
        FOR UPDATE;

    DELETE FROM holdfast.outlets AS o WHERE o.tenant = s.tenant AND o.sid = s.sid;
    DELETE FROM holdfast.dead_letters AS d WHERE d.tenant = s.tenant AND d.sid = s.sid;
    DELETE FROM holdfast.log AS g WHERE g.tenant = s.tenant AND g.sid = s.sid;
    DELETE FROM holdfast.snapshots AS n WHERE n.tenant = s.tenant AND n.sid = s.sid;
    DELETE FROM holdfast.slices AS n WHERE n.tenant = s.tenant AND n.sid = s.sid;
    DELETE FROM holdfast.requests AS q WHERE q.tenant = s.tenant AND q.sid = s.sid;
    DELETE FROM holdfast.tokens AS t WHERE t.tenant = s.tenant AND t.sid = s.sid;
    PERFORM holdfast.forget_deliveries(s.tenant, s.sid);
    PERFORM holdfast.forget_effects(s.tenant, session);
    PERFORM holdfast.release_blobs(s.tenant, s.sid);
    SELECT coalesce(jsonb_agg(p), '[]')
      INTO freeing
      FROM (SELECT session, c.lane, jsonb_agg(DISTINCT c.call_id) AS frees
              FROM holdfast.permits AS c
             WHERE c.tenant = s.tenant AND c.sid = s.sid
             GROUP BY c.lane) AS p;
    freeing := holdfast.free_permits(freeing);
    PERFORM holdfast.doom_children(session, s.tenant, s.sid);
    DELETE FROM holdfast.lanes AS l WHERE l.tenant = s.tenant AND l.sid = s.sid;
    DELETE FROM holdfast.sessions AS r WHERE r.tenant = s.tenant AND r.sid = s.sid;
    RETURN freeing;
END
$$;

-- What the session started is to be erased too, by whoever sees it. All that the session added
-- is here: who was about to add more waits for it, and is refused. Rows are held in their order,
-- since a child may be erased at the same time.
CREATE FUNCTION holdfast.doom_children(session text, owner text, own_sid bigint) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
       FROM holdfast.children AS c
      WHERE c.parent = session OR (c.tenant = owner AND c.sid = own_sid)
      ORDER BY c.sid
        FOR UPDATE;
    UPDATE holdfast.children AS c SET doomed = true WHERE c.parent = session;
    DELETE FROM holdfast.children AS c WHERE c.tenant = owner AND c.sid = own_sid;
END
$$;

-- Of deliveries the names stay, so that one that is sent again is known for what it is.
CREATE FUNCTION holdfast.forget_deliveries(owner text, session bigint) RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO holdfast.dispatches (tenant, name, sid, arrival)
    SELECT d.tenant, holdfast.name_of(d.id), d.sid, d.arrival
      FROM holdfast.deliveries AS d
     WHERE d.tenant = owner AND d.sid = session
        ON CONFLICT DO NOTHING;
    DELETE FROM holdfast.deliveries AS d WHERE d.tenant = owner AND d.sid = session;
$$;

-- A session's own idempotency keys go with it. One that other sessions share stays used, and
-- nobody knows any more what came of it; one that is free is nobody's.
CREATE FUNCTION holdfast.forget_effects(owner text, session text) RETURNS void
    LANGUAGE sql
AS $$
    DELETE FROM holdfast.effects AS e WHERE e.tenant = owner AND e.scope = 'session:' || session;
    DELETE FROM holdfast.effects AS e
     WHERE e.tenant = owner AND e.session_id = session AND e.state = 'free';
    UPDATE holdfast.effects AS e
       SET state = 'unknown', value = ''
     WHERE e.tenant = owner AND e.session_id = session;
$$;

-- The commits of a group that were written and have something to tell make the outlets of
-- their sessions due, by the database's own clock. One that is due already stays so as it was.
CREATE FUNCTION holdfast.tell(wanted jsonb, answers jsonb[]) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
BEGIN
    UPDATE holdfast.outlets AS o
       SET told = o.told + 1, due_at = coalesce(o.due_at, holdfast.now_ms())
      FROM (SELECT DISTINCT s.tenant, s.sid
              FROM jsonb_array_elements(wanted) WITH ORDINALITY AS w (one, place)
              JOIN holdfast.sessions AS s ON s.id = w.one->>'session'
             WHERE w.one ? 'tells' AND answers[w.place]->>0 = 'written') AS t
     WHERE o.tenant = t.tenant AND o.sid = t.sid;
END
$$;

-- Let calls begin as far as their limits allow, in the order in which they asked. A wish is
-- granted under all its limits, or queued at the first that has no place. The answers are
-- ["granted"], ["waits", when to ask again or null] and ["lease_lost"].
CREATE OR REPLACE FUNCTION holdfast.acquire(wishes jsonb) RETURNS jsonb
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
          FROM holdfast.sessions AS s
          JOIN holdfast.lanes AS n ON n.tenant = s.tenant AND n.sid = s.sid
         WHERE s.id = wish->>'session_id'
           AND n.lane = wish->>'lane'
           AND n.worker = wish->>'worker'
           AND n.fence = (wish->>'fence')::bigint
           -- Nobody erases it before this ends; who has begun to holds it, and only he does.
           FOR KEY SHARE OF n SKIP LOCKED;
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
            answer := holdfast.ask_for_permit(
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

-- What a commit sends to other sessions: each is admitted, or dropped where it cannot be. The
-- sessions are locked, as those of the whole group. Two that come with the same name at once
-- meet in the index of names: then the group is tried again, and finds the first.
CREATE FUNCTION holdfast.send(letters jsonb, data bytea) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    letter jsonb;
BEGIN
    FOR letter IN SELECT * FROM jsonb_array_elements(letters) LOOP
        -- A delivery that is there under another name would fail again each time.
        IF letter->>'name' IS NULL OR NOT EXISTS (
            SELECT 1 FROM holdfast.deliveries AS d WHERE d.id = letter->>'delivery'
        ) THEN
            PERFORM holdfast.admit(letter, data);
        END IF;
    END LOOP;
END
$$;

-- Which cancels among letters are made out to another turn than the one that is open: the place
-- of each and that turn, or nothing.
CREATE FUNCTION holdfast.find_other_turns(letters jsonb) RETURNS jsonb
    LANGUAGE sql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
    SELECT jsonb_build_array(
               'turns', jsonb_agg(jsonb_build_array(w.place - 1, coalesce(l.turn, '')))
           )
      FROM jsonb_array_elements(letters) WITH ORDINALITY AS w (letter, place)
      LEFT JOIN holdfast.sessions AS s ON s.id = w.letter->>'session'
      LEFT JOIN holdfast.lanes AS l
        ON l.tenant = s.tenant AND l.sid = s.sid AND l.lane = w.letter->>'lane'
     WHERE w.letter->>'turn' <> coalesce(l.turn, '')
    HAVING count(*) > 0
$$;

-- Hold the lanes of a group that sends, in the order in which everybody does who waits for
-- several (see bury): then they are written to in any order.
CREATE FUNCTION holdfast.hold_lanes(entries jsonb) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
BEGIN
    PERFORM 1
       FROM (SELECT DISTINCT e->>'session' AS session, e->>'lane' AS lane
               FROM jsonb_array_elements(entries) AS e) AS w
       JOIN holdfast.sessions AS s ON s.id = w.session
       JOIN holdfast.lanes AS l ON l.tenant = s.tenant AND l.sid = s.sid AND l.lane = w.lane
      ORDER BY s.id, l.lane
        FOR NO KEY UPDATE OF l;
END
$$;

-- A group of commits and admissions: one call, one transaction, one round trip. `wanted` is
-- what each of them says, and `data` all their bytes, of which each names its parts. The
-- answers come in the same order, and with them the ids of sessions that somebody was woken in.
-- Sessions are locked first, by id: whoever writes to several does so in this order, and what
-- commits send counts as the rest does. Then blobs are, by hash, then lanes in the order of
-- their sessions, and limits by name; the rest is its session's, or is held by nobody who waits.
--
-- Commits that only move their lane and add to the log are written all at once, if nothing
-- stands against them. All else is done one by one, and so is whatever that left.
CREATE OR REPLACE FUNCTION holdfast.write(wanted jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    one jsonb;
    place bigint;
    answers jsonb[];
    freeing jsonb := '[]';
    refused jsonb := '[]';
    entries jsonb := wanted;
    has_sends boolean := wanted @? '$[*].sends';
    has_blobs boolean;
BEGIN
    IF has_sends THEN
        entries := wanted || jsonb_path_query_array(wanted, '$[*].sends[*]');
    END IF;
    has_blobs := entries @? '$[*].blobs';
    IF has_blobs OR jsonb_array_length(entries) > 1 THEN
        PERFORM 1
           FROM holdfast.sessions AS s
          WHERE s.id IN (SELECT e->>'session' FROM jsonb_array_elements(entries) AS e)
          ORDER BY s.id
            FOR NO KEY UPDATE;
    END IF;
    IF has_blobs THEN
        PERFORM holdfast.lay_blobs(entries, data);
    END IF;
    IF has_sends THEN
        PERFORM holdfast.hold_lanes(entries);
    END IF;
    answers := array_fill(NULL::jsonb, ARRAY[jsonb_array_length(wanted)]);
    FOR place, one IN SELECT * FROM holdfast.commit_plain(wanted, data) LOOP
        answers[place] := one;
    END LOOP;
    FOR one, place IN SELECT * FROM jsonb_array_elements(wanted) WITH ORDINALITY LOOP
        CONTINUE WHEN answers[place] IS NOT NULL;
        answers[place] := CASE WHEN one ? 'fence' THEN holdfast.commit(one, data)
                               ELSE holdfast.admit(one, data) END;
        IF one ? 'frees' AND answers[place]->>0 = 'written' THEN
            freeing := freeing || one;
        ELSIF one ? 'blobs' AND answers[place]->>0 NOT IN ('written', 'admitted') THEN
            refused := refused || one;
        END IF;
    END LOOP;
    IF has_sends AND has_blobs THEN
        refused := refused || jsonb_path_query_array(wanted, '$[*].sends[*] ? (exists (@.blobs))');
    END IF;
    IF refused <> '[]' THEN
        PERFORM holdfast.clear_blobs(refused);
    END IF;
    IF wanted @? '$[*].tells' THEN
        PERFORM holdfast.tell(wanted, answers);
    END IF;
    RETURN jsonb_build_object(
        'answers', to_jsonb(answers), 'woken', holdfast.free_permits(freeing)
    );
END
$$;
