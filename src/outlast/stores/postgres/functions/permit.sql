-- Let calls begin as far as their limits allow, in the order in which they asked. A wish is
-- granted under all its limits, or queued at the first that has no place. The answers are
-- ["granted"], ["waits", when to ask again or null] and ["lease_lost"]. What a call has under other
-- limits is another's, since an answer that was lost asked for something else: also returned are
-- the sessions that may go on by that.
CREATE OR REPLACE FUNCTION outlast.acquire(wishes jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
DECLARE
    wish jsonb;
    l record;
    bound record;
    answer jsonb;
    answers jsonb[] := '{}';
    stale text[];
    woken jsonb := '[]';
BEGIN
    PERFORM outlast.hold_limits(jsonb_path_query_array(wishes, '$[*].bounds[*].name'), '[]');
    FOR wish IN SELECT w FROM jsonb_array_elements(wishes) AS w LOOP
        SELECT n.tenant, n.sid, n.lane
          INTO l
          FROM outlast.sessions AS s
          JOIN outlast.lanes AS n ON n.tenant = ANY (ARRAY[s.tenant]) AND n.sid = s.sid
         WHERE s.id = wish->>'session_id'
           AND n.lane = wish->>'lane'
           AND n.worker IS NOT DISTINCT FROM wish->>'worker'
           AND n.fence = (wish->>'fence')::bigint
           -- Nobody erases it before this ends; who has begun to holds it, and only he does.
           FOR KEY SHARE OF n SKIP LOCKED;
        IF NOT FOUND THEN
            answers := answers || '["lease_lost"]'::jsonb;
            CONTINUE;
        END IF;
        SELECT array_agg(p.name) INTO stale
          FROM outlast.permits AS p
         WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
           AND p.call_id = wish->>'call_id'
           AND NOT wish @? format('$.bounds[*] ? (@.name == %s)', to_json(p.name))::jsonpath;
        IF stale IS NOT NULL THEN
            PERFORM outlast.hold_also(stale);
            DELETE FROM outlast.permits AS p
             WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
               AND p.call_id = wish->>'call_id' AND p.name = ANY (stale);
            woken := woken || outlast.call_up(stale);
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
    RETURN jsonb_build_array(to_jsonb(answers), woken);
END
$$;

-- Hold limits after others are held, which must not wait: should another call have one of them
-- in hand, the transaction is tried again.
CREATE OR REPLACE FUNCTION outlast.hold_also(names text[]) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    held bigint;
BEGIN
    PERFORM 1 FROM outlast.limits AS m WHERE m.name = ANY (names) FOR UPDATE SKIP LOCKED;
    GET DIAGNOSTICS held = ROW_COUNT;
    IF held < cardinality(names) THEN
        RAISE EXCEPTION 'another call was quicker' USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;

-- Hold limits to the transaction's end, by name, before anything else is held: those named, and
-- those under which the calls of the lanes that commits touch have permits or wait for some.
CREATE OR REPLACE FUNCTION outlast.hold_limits(named jsonb, commits jsonb) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
BEGIN
    INSERT INTO outlast.limits (name)
    SELECT DISTINCT n.name COLLATE "C"
      FROM jsonb_array_elements_text(named) AS n (name)
     WHERE NOT EXISTS (SELECT 1 FROM outlast.limits AS m WHERE m.name = n.name)
     ORDER BY 1
        ON CONFLICT DO NOTHING;
    PERFORM 1
       FROM outlast.limits AS m
      WHERE m.name IN (SELECT n.name FROM jsonb_array_elements_text(named) AS n (name)
                       UNION ALL
                       SELECT p.name
                         FROM jsonb_to_recordset(commits) AS c (session text, lane text)
                         JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[c.session])
                         JOIN outlast.permits AS p
                           ON p.tenant = ANY (ARRAY[s.tenant]) AND p.sid = s.sid
                          AND p.lane = c.lane)
      ORDER BY m.name
        FOR UPDATE;
END
$$;

-- A permit under one limit, which is held. A call that asks for the first time goes to the end of
-- its tenant's part of the line; one that asks again is in it, though it had been passed by.
CREATE OR REPLACE FUNCTION outlast.ask_for_permit(
    owner text, session bigint, lane_name text, call text,
    limit_name text, concurrency integer, rate integer, per bigint
) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    now bigint := outlast.now_ms();
    known record;
    mine record;
    running bigint;
    ahead bigint;
    -- Microseconds that a start pays for: rather one too many than one too few.
    price bigint := CASE WHEN rate > 0 THEN (per * 1000 + rate - 1) / rate ELSE 0 END;
    start_at bigint := now;
BEGIN
    SELECT m.paid_until, m.most, m.last_tenant INTO known
      FROM outlast.limits AS m WHERE m.name = limit_name;
    IF known.most <> concurrency THEN
        UPDATE outlast.limits AS m SET most = concurrency WHERE m.name = limit_name;
    END IF;
    INSERT INTO outlast.permits AS p (name, tenant, sid, lane, call_id, most, held)
    VALUES (limit_name, owner, session, lane_name, call, concurrency, false)
        ON CONFLICT (tenant, sid, lane, call_id, name) DO UPDATE
       SET most = excluded.most, absent = false, expected_at = NULL
    RETURNING p.pid, p.held INTO mine;
    IF mine.held THEN
        RETURN '["granted"]';
    END IF;
    SELECT count(*) INTO running
      FROM outlast.permits AS p
     WHERE p.name = limit_name AND p.held AND NOT p.absent;
    IF concurrency > 0 AND NOT EXISTS (
           SELECT 1
             FROM outlast.in_line(limit_name, concurrency - running) AS w
            WHERE w.pid = mine.pid AND w.place + running <= concurrency) THEN
        RETURN '["waits", null]';
    END IF;
    IF rate > 0 THEN
        -- Of no tenant can more be ahead of it than of its own, and those at work.
        SELECT w.place - 1 INTO ahead
          FROM outlast.in_line(
                   limit_name,
                   running + (SELECT count(*)
                                FROM outlast.permits AS p
                               WHERE p.name = limit_name AND p.tenant = owner
                                 AND NOT p.held AND NOT p.absent AND p.pid <= mine.pid)
               ) AS w
         WHERE w.pid = mine.pid;
        start_at := (greatest(known.paid_until, now * 1000) + (ahead + 1 - rate) * price + 999)
                    / 1000;
        IF start_at > now THEN
            UPDATE outlast.permits AS p
               SET expected_at = start_at
             WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name
               AND p.call_id = call AND p.name = limit_name;
            RETURN jsonb_build_array('waits', start_at);
        END IF;
        UPDATE outlast.limits AS m
           SET paid_until = greatest(known.paid_until, now * 1000) + price
         WHERE m.name = limit_name;
    END IF;
    IF known.last_tenant <> owner THEN
        UPDATE outlast.limits AS m SET last_tenant = owner WHERE m.name = limit_name;
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

-- Who is in line under a limit, with so many of each tenant at most: as many of the first places
-- are right. Tenants take turns: first comes whose tenant would have the fewest permits with it,
-- and of those who come by name after the one that began last. Each tenant is one step in an index, however many of its calls wait.
CREATE OR REPLACE FUNCTION outlast.in_line(limit_name text, of_each bigint)
    RETURNS TABLE (pid bigint, tenant text, sid bigint, lane text, most integer, place bigint)
    LANGUAGE sql STABLE
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET jit = off
AS $$
    WITH RECURSIVE tenants (name) AS (
        (SELECT p.tenant FROM outlast.permits AS p
          WHERE p.name = limit_name AND NOT p.held AND NOT p.absent
          ORDER BY p.tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT p.tenant FROM outlast.permits AS p
                 WHERE p.name = limit_name AND NOT p.held AND NOT p.absent AND p.tenant > t.name
                 ORDER BY p.tenant LIMIT 1)
          FROM tenants AS t
         WHERE t.name IS NOT NULL
    )
    SELECT w.pid, w.tenant, w.sid, w.lane, w.most,
           row_number() OVER (ORDER BY h.held + w.own_place, w.tenant <= m.last_tenant, w.tenant)
      FROM outlast.limits AS m
     CROSS JOIN tenants AS t
     CROSS JOIN LATERAL (
               SELECT count(*) AS held
                 FROM outlast.permits AS p
                WHERE p.name = limit_name AND p.tenant = t.name AND p.held AND NOT p.absent
           ) AS h
     CROSS JOIN LATERAL (
               SELECT p.pid, p.tenant, p.sid, p.lane, p.most,
                      row_number() OVER (ORDER BY p.pid) AS own_place
                 FROM outlast.permits AS p
                WHERE p.name = limit_name AND p.tenant = t.name AND NOT p.held AND NOT p.absent
                ORDER BY p.pid
                LIMIT greatest(of_each, 0)
           ) AS w
     WHERE m.name = limit_name AND of_each > 0
$$;

-- Take back the permits and places of calls that commits have freed, and wake who has a place
-- by that; returns the sessions of those. Their limits are held, but for one that a call asked
-- under since it was looked for: then the transaction is tried again, and finds it.
CREATE OR REPLACE FUNCTION outlast.free_permits(commits jsonb) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    names text[];
BEGIN
    SELECT array_agg(DISTINCT p.name) INTO names
      FROM jsonb_to_recordset(commits) AS c (session text, lane text, frees jsonb)
      JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[c.session])
      JOIN outlast.permits AS p
        ON p.tenant = ANY (ARRAY[s.tenant]) AND p.sid = s.sid AND p.lane = c.lane
     WHERE c.frees ? p.call_id;
    PERFORM outlast.hold_also(names);
    DELETE FROM outlast.permits AS p
     USING jsonb_to_recordset(commits) AS c (session text, lane text, frees jsonb),
           outlast.sessions AS s
     WHERE s.id = ANY (ARRAY[c.session])
       AND p.tenant = ANY (ARRAY[s.tenant]) AND p.sid = s.sid AND p.lane = c.lane
       AND c.frees ? p.call_id;
    RETURN outlast.call_up(names);
END
$$;

-- Wake those who have a place under limits, which are held; returns their sessions. They are
-- expected from now on: a lane that somebody has in hand is passed over, and should its owner not
-- be awake after all, it is missed before long.
CREATE OR REPLACE FUNCTION outlast.call_up(names text[]) RETURNS jsonb
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
DECLARE
    now bigint := outlast.now_ms();
    woken jsonb;
BEGIN
    WITH
        called AS (SELECT * FROM outlast.with_a_place(names)),
        expected AS (
            UPDATE outlast.permits AS p
               SET expected_at = now
              FROM called AS c
             WHERE p.name = c.name AND NOT p.held AND NOT p.absent
               AND p.tenant = c.tenant AND p.pid = c.pid
               AND p.expected_at IS NULL
        ),
        free AS (
            SELECT l.tenant, l.sid, l.lane
              FROM called AS c
              JOIN outlast.lanes AS l
                ON l.tenant = ANY (ARRAY[c.tenant]) AND l.sid = c.sid AND l.lane = c.lane
               FOR NO KEY UPDATE OF l SKIP LOCKED
        ),
        ready AS (
            UPDATE outlast.lanes AS l
               SET ready_at = least(l.ready_at, now)
              FROM free AS f
             WHERE l.tenant = ANY (ARRAY[f.tenant]) AND l.sid = f.sid AND l.lane = f.lane
        )
    SELECT coalesce(jsonb_agg(DISTINCT s.id), '[]') INTO woken
      FROM called AS c
      JOIN outlast.sessions AS s ON s.tenant = ANY (ARRAY[c.tenant]) AND s.sid = c.sid;
    RETURN woken;
END
$$;

-- The calls that have a place under one of the limits now, and their lanes.
CREATE OR REPLACE FUNCTION outlast.with_a_place(names text[])
    RETURNS TABLE (name text, pid bigint, tenant text, sid bigint, lane text)
    LANGUAGE sql STABLE
AS $$
    SELECT m.name, w.pid, w.tenant, w.sid, w.lane
      FROM outlast.limits AS m
     CROSS JOIN LATERAL (SELECT count(*) AS calls
                           FROM outlast.permits AS p
                          WHERE p.name = m.name AND p.held AND NOT p.absent) AS r
     CROSS JOIN LATERAL outlast.in_line(m.name, m.most - r.calls) AS w
     WHERE m.name = ANY (names) AND w.most > 0 AND w.place + r.calls <= w.most
$$;

-- Whether a call of a lane that waits should ask again before the lane rests: it has a place
-- under its limit now, or was passed by. Not one that is freed with the same commit. The limits are held to the transaction's end: who frees a
-- permit meanwhile finds the lane at rest, and wakes it.
CREATE OR REPLACE FUNCTION outlast.has_permit_to_come(
    owner text, session bigint, lane_name text, frees jsonb
) RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    names text[];
BEGIN
    SELECT array_agg(DISTINCT p.name) INTO names
      FROM outlast.permits AS p
     WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name AND NOT p.held
       AND NOT frees ? p.call_id;
    RETURN EXISTS (SELECT 1
                     FROM outlast.permits AS p
                    WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name
                      AND NOT frees ? p.call_id
                      AND (p.absent
                           OR p.pid IN (SELECT w.pid FROM outlast.with_a_place(names) AS w)));
END
$$;

-- Pass by the calls that have been expected for longer than `patience`: they are in no line until
-- they ask again, which their lanes are ready to, and others are called up in their stead. The
-- answer is how many they were, and the sessions of all who were woken.
CREATE OR REPLACE FUNCTION outlast.skip_stale(patience bigint) RETURNS jsonb
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
DECLARE
    now bigint := outlast.now_ms();
    names jsonb;
    passed bigint;
    woken jsonb;
BEGIN
    SELECT jsonb_agg(DISTINCT p.name) INTO names
      FROM (SELECT o.name
              FROM outlast.permits AS o
             WHERE o.expected_at < now - patience
             ORDER BY o.expected_at
             LIMIT 100) AS p;
    IF names IS NULL THEN
        RETURN '[0, []]';
    END IF;
    PERFORM outlast.hold_limits(names, '[]');
    WITH
        free AS (
            SELECT l.tenant, l.sid, l.lane
              FROM outlast.lanes AS l
              JOIN (SELECT DISTINCT p.tenant, p.sid, p.lane
                      FROM outlast.permits AS p
                     WHERE p.expected_at < now - patience AND names ? p.name) AS e
                ON l.tenant = ANY (ARRAY[e.tenant]) AND l.sid = e.sid AND l.lane = e.lane
               FOR NO KEY UPDATE OF l SKIP LOCKED
        ),
        ready AS (
            UPDATE outlast.lanes AS l
               SET ready_at = least(l.ready_at, now)
              FROM free AS f
             WHERE l.tenant = ANY (ARRAY[f.tenant]) AND l.sid = f.sid AND l.lane = f.lane
        ),
        missed AS (
            UPDATE outlast.permits AS p
               SET absent = true, expected_at = NULL
              FROM free AS f
             WHERE p.tenant = ANY (ARRAY[f.tenant]) AND p.sid = f.sid AND p.lane = f.lane
               AND p.expected_at < now - patience AND names ? p.name
            RETURNING p.tenant, p.sid
        )
    SELECT count(*), coalesce(jsonb_agg(DISTINCT s.id), '[]') INTO passed, woken
      FROM missed AS m
      JOIN outlast.sessions AS s ON s.tenant = ANY (ARRAY[m.tenant]) AND s.sid = m.sid;
    woken := woken || outlast.call_up(ARRAY(SELECT jsonb_array_elements_text(names)));
    RETURN jsonb_build_array(passed, woken);
END
$$;
