-- Most commits that change more than their lane and the log change one delivery: they are written
-- with the plain ones, all at once. What a commit or an admission does not mention is not
-- looked for. And a worker whose lease has run out is given no lanes.
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
        IF w.most_queued IS NOT NULL AND w.new IS NOT TRUE
           AND w.most_queued <= (SELECT coalesce(sum(n.queued), 0)
                                   FROM holdfast.lanes AS n
                                  WHERE n.tenant = s.tenant AND n.sid = s.sid) THEN
            RETURN '["queue_full", "session"]';
        ELSIF w.most_queued_of_tenant IS NOT NULL
              AND w.most_queued_of_tenant <= (SELECT coalesce(sum(n.queued), 0)
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

CREATE OR REPLACE FUNCTION holdfast.claim(
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
    now bigint := holdfast.now_ms();
    -- While the server was away nobody could renew: no lease has run out on one that has not
    -- been up for as long.
    up bigint := holdfast.uptime_ms();
    -- Others may be claiming the same at this moment: look at more than is wanted.
    enough integer := 4 * most + 100;
    patterns text[] := ARRAY(SELECT jsonb_array_elements_text(names));
    claims jsonb;
BEGIN
    PERFORM holdfast.note_server();
    IF most > 0 AND EXISTS (SELECT 1
                              FROM holdfast.workers AS w
                             WHERE w.worker = claimer
                               AND (w.lease_until > now OR up < w.lease)) THEN
        IF most_of_agent <> '{}' THEN
            -- What is counted may not change before it is claimed.
            PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.lanes', 0));
        END IF;
        WITH RECURSIVE
            owners (name) AS (
                (SELECT l.worker FROM holdfast.lanes AS l
                  WHERE l.worker IS NOT NULL ORDER BY l.worker LIMIT 1)
                UNION ALL
                SELECT (SELECT l.worker FROM holdfast.lanes AS l
                         WHERE l.worker > o.name ORDER BY l.worker LIMIT 1)
                  FROM owners AS o
                 WHERE o.name IS NOT NULL
            ),
            gone (name) AS (
                SELECT o.name
                  FROM owners AS o
                 WHERE o.name <> claimer
                   AND NOT EXISTS (SELECT 1
                                     FROM holdfast.workers AS w
                                    WHERE w.worker = o.name
                                      AND (w.lease_until > now OR up < w.lease))
            ),
            forgotten AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence,
                       coalesce(l.ready_at, 0) AS ready_at
                  FROM holdfast.lanes AS l
                  JOIN holdfast.sessions AS s ON s.tenant = l.tenant AND s.sid = l.sid
                 WHERE l.worker = claimer
                   AND NOT held ? (s.id || ' ' || l.lane)
                   AND (served IS NULL OR served ? l.agent)
                   AND l.version <= readable
                 LIMIT enough
            ),
            orphaned AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence, l.ready_at
                  FROM gone AS g
                  JOIN holdfast.lanes AS l ON l.worker = g.name
                 WHERE l.ready_at <= now
                   AND (served IS NULL OR served ? l.agent)
                   AND (names IS NULL OR l.lane LIKE ANY (patterns))
                   AND l.version <= readable
                 ORDER BY l.ready_at, l.lid
                 LIMIT enough
            ),
            first_ones AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence, l.ready_at
                  FROM holdfast.lanes AS l
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
                (SELECT l.tenant FROM holdfast.lanes AS l
                  WHERE l.worker IS NULL AND l.ready_at IS NOT NULL
                    AND (SELECT b.is_there FROM backlog AS b)
                  ORDER BY l.tenant LIMIT 1)
                UNION ALL
                SELECT (SELECT l.tenant FROM holdfast.lanes AS l
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
                             FROM holdfast.lanes AS l
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
                  JOIN holdfast.lanes AS l ON l.worker = o.name
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
                  JOIN holdfast.lanes AS l
                    ON l.tenant = c.tenant AND l.sid = c.sid AND l.lane = c.lane
                 WHERE l.fence = c.fence AND l.worker IS NOT DISTINCT FROM c.worker
                 ORDER BY c.class, c.place, c.ready_at, c.lid
                 LIMIT most
                   FOR NO KEY UPDATE OF l SKIP LOCKED
            ),
            claimed AS (
                UPDATE holdfast.lanes AS l
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
                          FROM holdfast.permits AS p
                         WHERE p.tenant = c.tenant AND p.sid = c.sid AND p.lane = c.lane)
                   )
                   ORDER BY c.class, c.place, c.ready_at, c.lid
               )
          INTO claims
          FROM claimed AS c
          JOIN holdfast.sessions AS s ON s.tenant = c.tenant AND s.sid = c.sid;
    END IF;
    RETURN jsonb_build_object(
        'claims', coalesce(claims, '[]'),
        'now', now,
        'next', (SELECT min(l.ready_at)
                   FROM holdfast.lanes AS l
                  WHERE l.worker IS NULL AND l.ready_at IS NOT NULL AND l.ready_at > now)
    );
END
$$;

CREATE OR REPLACE FUNCTION holdfast.find_obstacle(wanted jsonb, owner text, session bigint, seen integer)
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
          JOIN holdfast.effects AS e ON e.scope = w.scope AND e.key = w.key AND e.tenant = owner
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
    IF wanted ? 'tokens' AND EXISTS (SELECT 1
                 FROM jsonb_array_elements_text(wanted->'tokens') AS w (token)
                 JOIN holdfast.tokens AS t
                   ON t.tenant = owner AND t.token = w.token AND t.living
                WHERE t.sid <> session) THEN
        RETURN '["token_taken"]';
    END IF;
    IF wanted ? 'slices_seen' AND EXISTS (
               SELECT 1
                 FROM holdfast.sessions AS s
                WHERE s.tenant = owner AND s.sid = session
                  AND s.slices_changed > (wanted->>'slices_seen')::integer) THEN
        RETURN '["slices_changed"]';
    END IF;
    -- A request may be closed otherwise than by its answer only if none came unseen.
    IF wanted ? 'closed' AND EXISTS (
               SELECT 1
                 FROM jsonb_to_recordset(wanted->'closed') AS w (id text, how text)
                 JOIN holdfast.requests AS q ON q.id = w.id AND q.tenant = owner
                WHERE w.how <> 'answered' AND q.answered_offset > seen) THEN
        RETURN '["arrivals"]';
    END IF;
    RETURN NULL;
END
$$;

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

    IF wanted ? 'opened' THEN
        INSERT INTO holdfast.requests (tenant, id, sid, lane, kind, state, expires_at, data)
        SELECT owner, q.id, session, name, q.kind, 'open', q.expires_at, q.data
          FROM jsonb_to_recordset(wanted->'opened')
                   AS q (id text, kind text, expires_at bigint, data text);
    END IF;
    IF wanted ? 'closed' THEN
        UPDATE holdfast.requests AS q
           SET state = c.how
          FROM jsonb_to_recordset(wanted->'closed') AS c (id text, how text)
         WHERE q.id = c.id AND q.tenant = owner;
    END IF;
    IF wanted ?| ARRAY['tokens', 'revoked'] THEN
        PERFORM holdfast.take_tokens(wanted, owner, session);
    END IF;
    IF wanted ? 'effects' THEN
        PERFORM holdfast.put_effects(wanted->'effects', owner);
    END IF;
    IF wanted ?| ARRAY['snapshot', 'slices'] THEN
        PERFORM holdfast.put_snapshots(wanted, data, owner, session, name);
    END IF;
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
                   s.last_offset + 1 AS first_new, greatest(w.at, s.last_at) AS written_at,
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
              LEFT JOIN LATERAL (
                       SELECT (d.state = 'queued' AND d.kind IN ('message', 'retry')
                               AND d.sid = s.sid AND d.lane = w.lane)::integer AS waited
                         FROM holdfast.deliveries AS d
                        WHERE d.id = w.deliveries->0->>'id' AND d.tenant = s.tenant
                   ) AS q ON true
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
                   queued = n.queued - f.left_queue,
                   digest = decode(f.digest, 'hex'),
                   commit_offset = f.first_new,
                   commit_at = f.written_at,
                   worker = CASE WHEN f.release THEN NULL ELSE n.worker END
              FROM found AS f
             WHERE n.ctid = f.lane_row
        ),
        changed AS (
            UPDATE holdfast.deliveries AS d
               SET state = f.change->>'state',
                   outcome = f.change->>'outcome',
                   turn = coalesce(f.change->>'turn', d.turn),
                   settled_offset = f.first_new + (f.change->>'settled')::integer
              FROM found AS f
             WHERE d.id = f.change->>'id' AND d.tenant = f.tenant
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
    has_sends boolean;
    has_blobs boolean;
BEGIN
    IF jsonb_array_length(wanted) = 1 AND wanted->0 ? 'plain' AND NOT wanted->0 ? 'tells' THEN
        SELECT p.answer INTO one FROM holdfast.commit_plain(wanted, data) AS p;
        IF FOUND THEN
            RETURN jsonb_build_object('answers', jsonb_build_array(one), 'woken', '[]'::jsonb);
        END IF;
    END IF;
    has_sends := wanted @? '$[*].sends';
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
