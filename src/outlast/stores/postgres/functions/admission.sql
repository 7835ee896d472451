-- One admission: checked first, then written, so that a refusal has nothing to undo. The answers:
--
--   ["admitted", offset, position]
--   ["repeated", same content, session, lane, delivery, offset, position]
--   ["erased"]                     a repeated one whose session was erased
--   ["turn", turn]                 a cancel that names another turn than the open one, which is this
--   a refusal with its subject     see `refuse` in admission.py
CREATE OR REPLACE FUNCTION outlast.admit(wanted jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    w record;
    s record;
    l record;
    earlier record;
    request record;
    now bigint := outlast.now_ms();
    obstacle jsonb;
    arrived integer;
    before integer;
BEGIN
    SELECT * INTO w
      FROM jsonb_to_record(wanted) AS x (
               tenant text, session text, lane text, delivery text, kind text, name text,
               fingerprint text, new boolean, agent text, mode text, token text, request text,
               turn text, at bigint, version integer, count integer, marks smallint,
               start integer, size integer, bytes integer, most_queued integer,
               most_queued_of_tenant integer, most_bytes bigint
           );

    SELECT r.id AS session, d.lane, d.id, d.arrival, d.position, d.fingerprint
      INTO earlier
      FROM outlast.find_delivery(w.tenant, decode(w.name, 'hex'), w.delivery) AS d
      LEFT JOIN outlast.sessions AS r ON r.tenant = ANY (ARRAY[d.tenant]) AND r.sid = d.sid;
    IF FOUND AND earlier.session IS NULL THEN
        RETURN '["erased"]';
    ELSIF FOUND THEN
        RETURN jsonb_build_array(
            'repeated', earlier.fingerprint = decode(w.fingerprint, 'hex'),
            earlier.session, earlier.lane, earlier.id, earlier.arrival, earlier.position
        );
    END IF;

    SELECT r.tenant, r.sid, r.agent, r.queue, r.over, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = w.session
       FOR NO KEY UPDATE;
    IF s.sid IS NULL AND w.name IS NULL AND EXISTS (
        SELECT 1
          FROM outlast.dispatches AS p
         WHERE p.tenant = w.tenant AND p.name = outlast.name_of(w.delivery)
    ) THEN
        RETURN '["erased"]';
    END IF;
    IF w.new THEN
        IF s.sid IS NOT NULL THEN
            obstacle := '["exists"]';
        ELSIF w.token <> '' AND EXISTS (
            SELECT 1
              FROM outlast.tokens AS t
             WHERE t.token = w.token AND t.tenant IS NOT DISTINCT FROM w.tenant AND t.living
        ) THEN
            obstacle := '["token_taken"]';
        END IF;
        IF obstacle IS NOT NULL THEN
            -- A session that does not exist yet could not be locked. If this item was sent again
            -- after a lost connection, its first try may be the obstacle: then the group is tried
            -- again.
            PERFORM 1 FROM outlast.find_delivery(w.tenant, decode(w.name, 'hex'), w.delivery);
            IF FOUND THEN
                RAISE EXCEPTION 'the same item was written meanwhile' USING ERRCODE = 'serialization_failure';
            END IF;
            RETURN obstacle;
        END IF;
    ELSIF s.tenant IS DISTINCT FROM w.tenant THEN
        RETURN '["unknown_session"]';
    ELSIF s.over <> '' THEN
        RETURN jsonb_build_array('over', s.over);
    END IF;
    IF w.kind IN ('message', 'retry') THEN
        IF w.most_queued IS NOT NULL AND w.new IS NOT TRUE
           AND w.most_queued <= (SELECT coalesce(sum(n.queued), 0)
                                   FROM outlast.lanes AS n
                                  WHERE n.tenant = s.tenant AND n.sid = s.sid) THEN
            RETURN '["queue_full", "session"]';
        ELSIF w.most_queued_of_tenant IS NOT NULL
              AND w.most_queued_of_tenant <= (SELECT coalesce(sum(n.queued), 0)
                                                FROM outlast.lanes AS n
                                               WHERE n.tenant = w.tenant AND n.queued > 0) THEN
            RETURN '["queue_full", "tenant"]';
        END IF;
    END IF;
    IF w.most_bytes IS NOT NULL AND w.new IS NOT TRUE
       AND w.most_bytes < w.bytes + (SELECT coalesce(sum(n.size), 0)
                                       FROM outlast.lanes AS n
                                      WHERE n.tenant = s.tenant AND n.sid = s.sid) THEN
        RETURN '["too_large"]';
    END IF;
    IF w.kind = 'reply' THEN
        SELECT CASE WHEN q.state = 'open' AND q.expires_at > 0 AND q.expires_at <= now
                    THEN 'expired' ELSE q.state END AS state
          INTO request
          FROM outlast.requests AS q
         WHERE q.id = w.request
           AND q.tenant IS NOT DISTINCT FROM w.tenant
           AND q.sid IS NOT DISTINCT FROM s.sid;
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
    -- The caller has a clock of its own. If that runs ahead, later records must not be as late.
    w.at := greatest(least(w.at, now), s.last_at);
    IF w.new THEN
        INSERT INTO outlast.sessions (tenant, id, agent, mode, queue, created_at, last_offset, last_at)
        VALUES (w.tenant, w.session, w.agent, w.mode, coalesce(wanted->>'queue', ''), w.at, arrived,
                w.at)
        RETURNING tenant, sid, agent, queue, over, last_offset, last_at INTO s;
        IF w.token <> '' THEN
            INSERT INTO outlast.tokens (tenant, token, sid, living)
            VALUES (w.tenant, w.token, s.sid, true);
        END IF;
        IF wanted ? 'outbox' THEN
            INSERT INTO outlast.outbox_cursors (tenant, sid, name, url, secret, events)
            SELECT w.tenant, s.sid, o.name, coalesce(o.url, ''), coalesce(o.secret, ''),
                   o.events
              FROM jsonb_to_recordset(wanted->'outbox') AS o (
                       name text, url text, secret text, events jsonb
                   );
        END IF;
        IF wanted ? 'tags' THEN
            INSERT INTO outlast.tags (tenant, name, value, id, sid)
            SELECT w.tenant, t.key, t.value, w.session, s.sid
              FROM jsonb_each_text(wanted->'tags') AS t;
        END IF;
        IF wanted ? 'parent' THEN
            INSERT INTO outlast.children (tenant, sid, parent)
            VALUES (w.tenant, s.sid, wanted->>'parent');
        END IF;
    ELSE
        UPDATE outlast.sessions AS r
           SET last_offset = arrived, last_at = w.at
         WHERE r.id = w.session;
    END IF;
    before := coalesce(l.queued, 0);
    -- An arrival makes its lane ready at once, an owned lane too: if its owner dies before it sees
    -- the arrival, another worker claims the lane.
    INSERT INTO outlast.lanes AS n
           (tenant, sid, lane, agent, queue, last_arrival, ready_at, version, status, queued,
            size)
    VALUES (w.tenant, s.sid, w.lane, s.agent, s.queue, arrived, now, w.version, 'idle',
            (w.kind IN ('message', 'retry'))::integer, w.bytes)
        ON CONFLICT (tenant, sid, lane) DO UPDATE
       SET last_arrival = excluded.last_arrival,
           ready_at = least(n.ready_at, excluded.ready_at),
           version = greatest(n.version, excluded.version),
           queued = n.queued + excluded.queued,
           size = n.size + excluded.size;
    IF wanted ? 'deployment' THEN
        INSERT INTO outlast.pins (tenant, sid, lane, deployment, at)
        VALUES (w.tenant, s.sid, w.lane, outlast.heir_of(wanted->>'deployment', s.agent), now);
    ELSIF l.queued IS NULL AND w.new IS NOT TRUE THEN
        -- A new lane of a session that stays with a deployment stays with it too.
        INSERT INTO outlast.pins (tenant, sid, lane, deployment, stays, at)
        SELECT w.tenant, s.sid, w.lane, p.deployment, true, now
          FROM outlast.pins AS p
         WHERE p.tenant = s.tenant AND p.sid = s.sid AND p.stays
         LIMIT 1;
    END IF;
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
         WHERE q.id = w.request AND q.tenant IS NOT DISTINCT FROM w.tenant;
    END IF;
    IF wanted ? 'blobs' THEN
        PERFORM outlast.link_blobs(w.tenant, s.sid, wanted->'blobs');
    END IF;
    RETURN jsonb_build_array('admitted', arrived, before);
END
$$;

-- Lock the tenants whose queued messages a group counts, by name: while one transaction counts the
-- queues of all of a tenant's sessions, no other may add to them.
CREATE OR REPLACE FUNCTION outlast.lock_tenants(entries jsonb) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT DISTINCT e->>'tenant' COLLATE "C" AS tenant
          FROM jsonb_array_elements(entries) AS e
         WHERE e ? 'most_queued_of_tenant' AND e->>'kind' IN ('message', 'retry')
         ORDER BY tenant
    LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended('outlast.tenants ' || name, 0));
    END LOOP;
END
$$;

-- The delivery that a dispatch was admitted as before: found by the name that its caller chose, or
-- by the delivery's id if Outlast named it. A row of NULLs for a name whose session was erased.
CREATE OR REPLACE FUNCTION outlast.find_delivery(owner text, dispatch bytea, delivery text)
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
          LEFT JOIN outlast.deliveries AS d
            ON d.tenant = ANY (ARRAY[p.tenant]) AND d.sid = p.sid AND d.arrival = p.arrival
         WHERE p.tenant = owner AND p.name = dispatch;
    END IF;
END
$$;

-- The name under which an erased delivery stays known.
CREATE OR REPLACE FUNCTION outlast.name_of(delivery text) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    RETURN substr(sha256(convert_to('delivery ' || delivery, 'UTF8')), 1, 16);

-- Admit what a commit sends to other sessions; drop what cannot be admitted. The sessions are
-- locked, as all of the group's. If two transactions send the same name at once, the second fails on
-- the index of names; its group is tried again and finds the first.
CREATE OR REPLACE FUNCTION outlast.send(sends jsonb, data bytea) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    item jsonb;
BEGIN
    FOR item IN SELECT * FROM jsonb_array_elements(sends) LOOP
        -- A delivery that exists under another name would fail again each time.
        IF item->>'name' IS NULL OR NOT EXISTS (
            SELECT 1 FROM outlast.deliveries AS d WHERE d.id = item->>'delivery'
        ) THEN
            PERFORM outlast.admit(item, data);
        END IF;
    END LOOP;
END
$$;

-- The cancels among the sends that name another turn than the open one: the place of each and the
-- open turn; NULL if there are none.
CREATE OR REPLACE FUNCTION outlast.find_other_turns(sends jsonb) RETURNS jsonb
    LANGUAGE sql
AS $$
    SELECT jsonb_build_array(
               'turns', jsonb_agg(jsonb_build_array(w.place - 1, coalesce(l.turn, '')))
           )
      FROM jsonb_array_elements(sends) WITH ORDINALITY AS w (item, place)
      LEFT JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[w.item->>'session'])
      LEFT JOIN outlast.lanes AS l
        ON l.tenant = ANY (ARRAY[s.tenant]) AND l.sid = s.sid AND l.lane = w.item->>'lane'
     WHERE w.item->>'turn' <> coalesce(l.turn, '')
    HAVING count(*) > 0
$$;

-- Lock the lanes of a group that sends, in the order of every transaction that waits for several
-- (see remove_worker): then they may be written in any order.
CREATE OR REPLACE FUNCTION outlast.lock_lanes(entries jsonb) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
       FROM (SELECT DISTINCT e->>'session' AS session, e->>'lane' AS lane
               FROM jsonb_array_elements(entries) AS e) AS w
       JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[w.session])
       JOIN outlast.lanes AS l
         ON l.tenant = ANY (ARRAY[s.tenant]) AND l.sid = s.sid AND l.lane = w.lane
      ORDER BY s.id, l.lane
        FOR NO KEY UPDATE OF l;
END
$$;
