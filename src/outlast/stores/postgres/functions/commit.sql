-- One commit of a lane's owner, whole or not at all. Whatever may refuse it is looked at
-- before the first write, so that the others of its group stand. The answer is one of
-- ["written", first offset, at, tenant, arrivals], ["arrivals", tenant, arrivals],
-- ["lease_lost"], ["token_taken"], ["slices_changed"] and ["effect_taken", effect]; ["turns",
-- [[place, turn]]] where it sends cancels that were made out to other turns than are open; and
-- ["absent"] where it was only asked whether the commit has landed.
CREATE OR REPLACE FUNCTION outlast.commit(wanted jsonb, data bytea) RETURNS jsonb
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
               at bigint, ready_at bigint, release boolean, status text, turn text, wait text,
               version integer, digest text, count integer, marks smallint, start integer,
               size integer, is_indexed boolean, asks boolean
           );
    -- Two steps, each one in an index: no plan for a join can go wrong.
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = w.session
       FOR NO KEY UPDATE;
    SELECT n.worker, n.number, n.last_arrival, n.digest, n.commit_offset, n.commit_at
      INTO l
      FROM outlast.lanes AS n
     WHERE n.tenant = s.tenant AND n.sid = s.sid AND n.lane = w.lane
       -- Who comes late does not hold it, not even until he is refused: it may have to be woken.
       AND n.fence = w.fence
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
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
          AND outlast.has_permit_to_come(
                  s.tenant, s.sid, w.lane, coalesce(wanted->'frees', '[]')
              ) THEN
        obstacle := '["arrivals"]';
    ELSIF obstacle IS NULL AND wanted @? '$.sends[*].turn' THEN
        obstacle := outlast.find_other_turns(wanted->'sends');
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
        UPDATE outlast.sessions AS r
           SET last_offset = r.last_offset + w.count, last_at = written_at
         WHERE r.id = w.session;
        INSERT INTO outlast.log (tenant, sid, first_offset, count, lane, at, marks, data)
        VALUES (s.tenant, s.sid, first_new, w.count, w.lane, written_at, w.marks,
                substr(data, w.start + 1, w.size));
    END IF;
    IF wanted ? 'sends' THEN
        PERFORM outlast.send(wanted->'sends', data);
    END IF;
    RETURN jsonb_build_array(
        'written', first_new, written_at, s.tenant,
        outlast.arrivals(s.tenant, s.sid, w.lane, w.seen, l.last_arrival)
    );
END
$$;

-- What stands against a commit that its lane would take, or nothing.
CREATE OR REPLACE FUNCTION outlast.find_obstacle(
    wanted jsonb, owner text, session bigint, seen integer
)
    RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    held record;
BEGIN
    IF wanted ? 'effects' THEN
        SELECT e.* INTO held
          FROM jsonb_to_recordset(wanted->'effects')
                   AS w (scope text, key text, session_id text, call_id text)
          JOIN outlast.effects AS e
            ON e.scope = ANY (ARRAY[w.scope]) AND e.key = w.key
           AND e.tenant IS NOT DISTINCT FROM owner
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
    END IF;
    -- The tokens of a session that is over are dead: it takes no more of them.
    IF wanted ? 'tokens' AND EXISTS (
               SELECT 1
                 FROM outlast.sessions AS s
                WHERE s.tenant = owner AND s.sid = session AND s.over <> '') THEN
        RETURN '["token_taken"]';
    END IF;
    IF wanted ? 'tokens' AND EXISTS (SELECT 1
                 FROM jsonb_array_elements_text(wanted->'tokens') AS w (token)
                 JOIN outlast.tokens AS t
                   ON t.token = ANY (ARRAY[w.token]) AND t.living
                  AND t.tenant IS NOT DISTINCT FROM owner
                WHERE t.sid <> session) THEN
        RETURN '["token_taken"]';
    END IF;
    IF wanted ? 'slices_seen' AND EXISTS (
               SELECT 1
                 FROM outlast.sessions AS s
                WHERE s.tenant = owner AND s.sid = session
                  AND s.slices_changed > (wanted->>'slices_seen')::integer) THEN
        RETURN '["slices_changed"]';
    END IF;
    -- A request may be closed otherwise than by its answer only if none came unseen.
    IF wanted ? 'closed' AND EXISTS (
               SELECT 1
                 FROM jsonb_to_recordset(wanted->'closed') AS w (id text, how text)
                 JOIN outlast.requests AS q
                   ON q.id = ANY (ARRAY[w.id]) AND q.tenant IS NOT DISTINCT FROM owner
                WHERE w.how <> 'answered' AND q.answered_offset > seen) THEN
        RETURN '["arrivals"]';
    END IF;
    RETURN NULL;
END
$$;

-- All that a commit changes besides its lane and the log. Returns how many messages that
-- waited in the lane wait no longer.
CREATE OR REPLACE FUNCTION outlast.change_indexes(
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
         WHERE d.id = change.id AND d.tenant IS NOT DISTINCT FROM owner;
        UPDATE outlast.deliveries AS d
           SET state = change.state,
               outcome = change.outcome,
               turn = coalesce(change.turn, d.turn),
               settled_offset = first_new + change.settled
         WHERE d.id = change.id AND d.tenant IS NOT DISTINCT FROM owner;
        left_queue := left_queue + coalesce(waited, false)::integer;
    END LOOP;

    IF wanted ? 'opened' THEN
        INSERT INTO outlast.requests (tenant, id, sid, lane, kind, state, expires_at, data)
        SELECT owner, q.id, session, name, q.kind, 'open', q.expires_at, q.data
          FROM jsonb_to_recordset(wanted->'opened')
                   AS q (id text, kind text, expires_at bigint, data text);
    END IF;
    FOR change IN SELECT * FROM jsonb_to_recordset(wanted->'closed') AS x (id text, how text) LOOP
        UPDATE outlast.requests AS q
           SET state = change.how
         WHERE q.id = change.id AND q.tenant IS NOT DISTINCT FROM owner;
    END LOOP;
    IF wanted ?| ARRAY['tokens', 'revoked'] THEN
        PERFORM outlast.take_tokens(wanted, owner, session);
    END IF;
    IF wanted ? 'effects' THEN
        PERFORM outlast.put_effects(wanted->'effects', owner);
    END IF;
    IF wanted ?| ARRAY['snapshot', 'slices'] THEN
        PERFORM outlast.put_snapshots(wanted, data, owner, session, name);
    END IF;
    IF wanted ? 'blobs' THEN
        PERFORM outlast.use_blobs(owner, session, wanted->'blobs');
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
CREATE OR REPLACE FUNCTION outlast.take_tokens(wanted jsonb, owner text, session bigint)
    RETURNS void
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
CREATE OR REPLACE FUNCTION outlast.put_effects(wanted jsonb, owner text) RETURNS void
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
CREATE OR REPLACE FUNCTION outlast.put_snapshots(
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
CREATE OR REPLACE FUNCTION outlast.end_session(
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

-- The plain commits of a group: those that change no index but one delivery's, one commit for
-- each session, whose lanes are their owners' and have had no arrival unseen. Returns the places of
-- those that were written, with their answers; `commit` says what becomes of the others.
--
-- Each row is looked up by its key and locked, one after the other. It is changed by its key as
-- well: where it was found, a row that was waited for is not yet to be seen.
CREATE OR REPLACE FUNCTION outlast.commit_plain(wanted jsonb, data bytea)
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
            SELECT w.*, s.tenant, s.sid, s.last_offset + 1 AS first_new,
                   greatest(w.at, s.last_at) AS written_at,
                   w.deliveries->0 AS change, coalesce(q.waited, 0) AS left_queue
              FROM ROWS FROM (jsonb_to_recordset(wanted) AS (
                       plain boolean, session text, lane text, worker text, fence bigint,
                       number bigint, seen integer, at bigint, ready_at bigint, release boolean,
                       status text, turn text, wait text, version integer, digest text,
                       count integer, marks smallint, start integer, size integer,
                       deliveries jsonb
                   )) WITH ORDINALITY AS w (
                       plain, session, lane, worker, fence, number, seen, at, ready_at, release,
                       status, turn, wait, version, digest, count, marks, start, size, deliveries,
                       place
                   )
             CROSS JOIN LATERAL (
                       SELECT r.tenant, r.sid, r.last_offset, r.last_at
                         FROM outlast.sessions AS r
                        WHERE r.id = w.session
                          FOR NO KEY UPDATE
                   ) AS s
             CROSS JOIN LATERAL (
                       SELECT l.worker, l.number, l.last_arrival
                         FROM outlast.lanes AS l
                        WHERE l.tenant = s.tenant AND l.sid = s.sid AND l.lane = w.lane
                          AND l.fence = w.fence
                          FOR NO KEY UPDATE
                   ) AS n
              LEFT JOIN LATERAL (
                       SELECT (d.state = 'queued' AND d.kind IN ('message', 'retry')
                               AND d.sid = s.sid AND d.lane = w.lane)::integer AS waited
                         FROM outlast.deliveries AS d
                        WHERE d.id = ANY (ARRAY[w.deliveries->0->>'id'])
                          AND d.tenant IS NOT DISTINCT FROM s.tenant
                   ) AS q ON true
             WHERE w.plain
               AND n.worker = w.worker
               AND n.number = w.number
               AND n.last_arrival <= w.seen
        ),
        moved AS (
            UPDATE outlast.lanes AS n
               SET number = n.number + 1,
                   status = f.status,
                   turn = f.turn,
                   wait = coalesce(f.wait, ''),
                   ready_at = f.ready_at,
                   version = greatest(n.version, f.version),
                   queued = n.queued - f.left_queue,
                   digest = decode(f.digest, 'hex'),
                   commit_offset = f.first_new,
                   commit_at = f.written_at,
                   worker = CASE WHEN f.release THEN NULL ELSE n.worker END
              FROM found AS f
             WHERE n.tenant = ANY (ARRAY[f.tenant]) AND n.sid = f.sid AND n.lane = f.lane
        ),
        changed AS (
            UPDATE outlast.deliveries AS d
               SET state = f.change->>'state',
                   outcome = f.change->>'outcome',
                   turn = coalesce(f.change->>'turn', d.turn),
                   settled_offset = f.first_new + (f.change->>'settled')::integer
              FROM found AS f
             WHERE d.id = ANY (ARRAY[f.change->>'id']) AND d.tenant IS NOT DISTINCT FROM f.tenant
        ),
        counted AS (
            UPDATE outlast.sessions AS s
               SET last_offset = s.last_offset + f.count, last_at = f.written_at
              FROM found AS f
             WHERE s.id = ANY (ARRAY[f.session]) AND f.count > 0
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

-- A plain commit that goes out alone, as those of a lone session do, and changes no delivery either.
-- Returns where it stands and when it was written, or nothing where anything stands against it:
-- `write` says what. Of the log's end that it has moved by then nobody has seen anything.
--
-- The session is held by a statement of its own: those that follow see what was written until then.
CREATE OR REPLACE FUNCTION outlast.commit_alone(
    session text, name text, owner text, held_fence bigint, last_number bigint, seen integer,
    made_at bigint, next_at bigint, new_status text, new_turn text, format integer,
    new_digest bytea, records integer, bytes bytea
) RETURNS bigint[]
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
AS $$
DECLARE
    s record;
BEGIN
    UPDATE outlast.sessions AS r
       SET last_offset = r.last_offset + records, last_at = greatest(r.last_at, made_at)
     WHERE r.id = session
    RETURNING r.tenant, r.sid, r.last_offset - records + 1 AS first_new, r.last_at INTO s;
    UPDATE outlast.lanes AS l
       SET number = l.number + 1,
           status = new_status,
           turn = new_turn,
           wait = '',
           ready_at = next_at,
           version = greatest(l.version, format),
           digest = new_digest,
           commit_offset = s.first_new,
           commit_at = s.last_at
     WHERE l.tenant = s.tenant
       AND l.sid = s.sid
       AND l.lane = name
       AND l.worker IS NOT DISTINCT FROM owner
       AND l.fence = held_fence
       AND l.number = last_number
       AND l.last_arrival <= seen;
    IF NOT FOUND THEN
        UPDATE outlast.sessions AS r
           SET last_offset = r.last_offset - records,
               last_at = (SELECT g.at
                            FROM outlast.log AS g
                           WHERE g.tenant = s.tenant AND g.sid = s.sid
                           ORDER BY g.first_offset DESC
                           LIMIT 1)
         WHERE r.id = session;
        RETURN NULL;
    END IF;
    INSERT INTO outlast.log (tenant, sid, first_offset, count, lane, at, marks, data)
    VALUES (s.tenant, s.sid, s.first_new, records, name, s.last_at, 0, bytes);
    RETURN ARRAY[s.first_new, s.last_at];
END
$$;
