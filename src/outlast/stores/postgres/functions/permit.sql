-- Grant permits as far as limits allow, in the order of the requests. A request is granted under all
-- its limits, or waits at the first that is full. The answers are ["granted"], ["waits", when to ask
-- again or null] and ["lease_lost"]. Permits that a call has under limits that it no longer names are
-- freed: the answer to an earlier request was lost. Returned beside the answers are the sessions in
-- which that woke a call.
CREATE OR REPLACE FUNCTION outlast.acquire(requests jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
DECLARE
    request jsonb;
    l record;
    bound record;
    answer jsonb;
    answers jsonb[] := '{}';
    stale text[];
    woken jsonb := '[]';
BEGIN
    PERFORM outlast.lock_limits(jsonb_path_query_array(requests, '$[*].bounds[*].name'), '[]');
    FOR request IN SELECT w FROM jsonb_array_elements(requests) AS w LOOP
        SELECT n.tenant, n.sid, n.lane
          INTO l
          FROM outlast.sessions AS s
          JOIN outlast.lanes AS n ON n.tenant = ANY (ARRAY[s.tenant]) AND n.sid = s.sid
         WHERE s.id = request->>'session_id'
           AND n.lane = request->>'lane'
           AND n.worker IS NOT DISTINCT FROM request->>'worker'
           AND n.fence = (request->>'fence')::bigint
           -- The lock keeps the lane from being erased before this ends. A lane that is locked
           -- against it is being erased.
           FOR KEY SHARE OF n SKIP LOCKED;
        IF NOT FOUND THEN
            answers := answers || '["lease_lost"]'::jsonb;
            CONTINUE;
        END IF;
        SELECT array_agg(p.name) INTO stale
          FROM outlast.permits AS p
         WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
           AND p.call_id = request->>'call_id'
           AND NOT request @? format('$.bounds[*] ? (@.name == %s)', to_json(p.name))::jsonpath;
        IF stale IS NOT NULL THEN
            PERFORM outlast.lock_more_limits(stale);
            DELETE FROM outlast.permits AS p
             WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
               AND p.call_id = request->>'call_id' AND p.name = ANY (stale);
            woken := woken || outlast.wake_grantable(stale);
        END IF;
        answer := '["granted"]';
        FOR bound IN
            SELECT *
              FROM jsonb_to_recordset(request->'bounds')
                       AS b (name text, concurrency integer, rate integer, per bigint)
        LOOP
            answer := outlast.request_permit(
                l.tenant, l.sid, l.lane, request->>'call_id',
                bound.name, bound.concurrency, bound.rate, bound.per,
                (request->>'ahead')::bigint
            );
            EXIT WHEN answer->>0 <> 'granted';
        END LOOP;
        answers := answers || answer;
    END LOOP;
    RETURN jsonb_build_array(to_jsonb(answers), woken);
END
$$;

-- Lock limits out of order, after others are locked. This must not wait: if another transaction has
-- locked one of them, this one is tried again.
CREATE OR REPLACE FUNCTION outlast.lock_more_limits(names text[]) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    held bigint;
BEGIN
    PERFORM 1 FROM outlast.limits AS m WHERE m.name = ANY (names) FOR UPDATE SKIP LOCKED;
    GET DIAGNOSTICS held = ROW_COUNT;
    IF held < cardinality(names) THEN
        RAISE EXCEPTION 'another transaction has the limit' USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;

-- Lock limits to the transaction's end, by name, before anything else is locked: those named, and
-- those under which calls of the commits' lanes hold permits or wait for them.
CREATE OR REPLACE FUNCTION outlast.lock_limits(named jsonb, commits jsonb) RETURNS void
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

-- Request a permit under one limit, which is locked. A call that asks for the first time goes to the
-- end of its tenant's queue, as of so many milliseconds `earlier`; one that asks again keeps its place, even if it had been skipped.
CREATE OR REPLACE FUNCTION outlast.request_permit(
    owner text, session bigint, lane_name text, call text,
    limit_name text, concurrency integer, rate integer, per bigint, earlier bigint
) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    now bigint := outlast.now_ms();
    known record;
    mine record;
    running bigint;
    ahead bigint;
    -- The microseconds that a start pays for, rounded up.
    price bigint := CASE WHEN rate > 0 THEN (per * 1000 + rate - 1) / rate ELSE 0 END;
    start_at bigint := now;
BEGIN
    SELECT m.paid_until, m.most, m.last_tenant INTO known
      FROM outlast.limits AS m WHERE m.name = limit_name;
    IF known.most <> concurrency THEN
        UPDATE outlast.limits AS m SET most = concurrency WHERE m.name = limit_name;
    END IF;
    INSERT INTO outlast.permits AS p (name, tenant, sid, lane, call_id, most, held, asked_at, rank)
    VALUES (limit_name, owner, session, lane_name, call, concurrency, false, now, now - earlier)
        ON CONFLICT (tenant, sid, lane, call_id, name) DO UPDATE
       SET most = excluded.most, absent = false, expected_at = NULL
    RETURNING p.pid, p.held, p.rank INTO mine;
    IF mine.held THEN
        RETURN '["granted"]';
    END IF;
    SELECT count(*) INTO running
      FROM outlast.permits AS p
     WHERE p.name = limit_name AND p.held AND NOT p.absent;
    IF concurrency > 0 AND NOT EXISTS (
           SELECT 1
             FROM outlast.waiting_calls(limit_name, concurrency - running) AS w
            WHERE w.pid = mine.pid AND w.place + running <= concurrency) THEN
        RETURN '["waits", null]';
    END IF;
    IF rate > 0 THEN
        -- No tenant can have more calls ahead of this one than its own has, plus those at work.
        SELECT w.place - 1 INTO ahead
          FROM outlast.waiting_calls(
                   limit_name,
                   running + (SELECT count(*)
                                FROM outlast.permits AS p
                               WHERE p.name = limit_name AND p.tenant = owner
                                 AND NOT p.held AND NOT p.absent
                                 AND (p.rank, p.pid) <= (mine.rank, mine.pid))
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

-- The calls that wait under a limit, in their order, at most `of_each` of each tenant: as many of the
-- first places are right. Tenants take turns: the next call is one whose tenant would then have the
-- fewest permits, and among those the first by name after the tenant that began last. Each tenant is
-- one step in an index, however many of its calls wait.
CREATE OR REPLACE FUNCTION outlast.waiting_calls(limit_name text, of_each bigint)
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
                      row_number() OVER (ORDER BY p.rank, p.pid) AS own_place
                 FROM outlast.permits AS p
                WHERE p.name = limit_name AND p.tenant = t.name AND NOT p.held AND NOT p.absent
                ORDER BY p.rank, p.pid
                LIMIT greatest(of_each, 0)
           ) AS w
     WHERE m.name = limit_name AND of_each > 0
$$;

-- Delete the permits and requests of calls that commits have freed, and wake the calls that can now
-- begin; returns their sessions. The limits are locked, except one that a call asked under since
-- `lock_limits` looked: then the transaction is tried again and finds it.
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
    PERFORM outlast.lock_more_limits(names);
    DELETE FROM outlast.permits AS p
     USING jsonb_to_recordset(commits) AS c (session text, lane text, frees jsonb),
           outlast.sessions AS s
     WHERE s.id = ANY (ARRAY[c.session])
       AND p.tenant = ANY (ARRAY[s.tenant]) AND p.sid = s.sid AND p.lane = c.lane
       AND c.frees ? p.call_id;
    RETURN outlast.wake_grantable(names);
END
$$;

-- Wake the calls that can begin under limits, which are locked; returns their sessions. They are
-- expected from now on. A lane that is locked by another transaction is skipped: if its owner is not
-- awake after all, `skip_stale` finds the call before long.
CREATE OR REPLACE FUNCTION outlast.wake_grantable(names text[]) RETURNS jsonb
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
        called AS (SELECT * FROM outlast.grantable_calls(names)),
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

-- The calls that can begin under one of the limits now, and their lanes.
CREATE OR REPLACE FUNCTION outlast.grantable_calls(names text[])
    RETURNS TABLE (name text, pid bigint, tenant text, sid bigint, lane text)
    LANGUAGE sql STABLE
AS $$
    SELECT m.name, w.pid, w.tenant, w.sid, w.lane
      FROM outlast.limits AS m
     CROSS JOIN LATERAL (SELECT count(*) AS calls
                           FROM outlast.permits AS p
                          WHERE p.name = m.name AND p.held AND NOT p.absent) AS r
     CROSS JOIN LATERAL outlast.waiting_calls(m.name, m.most - r.calls) AS w
     WHERE m.name = ANY (names) AND w.most > 0 AND w.place + r.calls <= w.most
$$;

-- Whether a waiting call of a lane should ask again before the lane rests: it can begin now, or was
-- skipped. Calls that the same commit frees do not count. The limits are locked to the transaction's
-- end: a transaction that frees a permit after that finds the lane at rest, and wakes it.
CREATE OR REPLACE FUNCTION outlast.has_grantable_call(
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
                           OR p.pid IN (SELECT w.pid FROM outlast.grantable_calls(names) AS w)));
END
$$;

-- The calls that have been expected since before an instant; and in lines, under names from `line` up
-- to `behind`, those that hold a permit in a lane that has been ready since then and has no owner.
CREATE OR REPLACE FUNCTION outlast.overdue_permits(before bigint, line text, behind text)
    RETURNS TABLE (name text, tenant text, sid bigint, lane text, pid bigint, since bigint)
    LANGUAGE sql STABLE
AS $$
    SELECT p.name, p.tenant, p.sid, p.lane, p.pid, p.expected_at
      FROM outlast.permits AS p
     WHERE p.expected_at < before
    UNION ALL
    SELECT p.name, p.tenant, p.sid, p.lane, p.pid, l.ready_at
      FROM outlast.permits AS p
      JOIN outlast.lanes AS l ON l.tenant = p.tenant AND l.sid = p.sid AND l.lane = p.lane
     WHERE p.name >= line COLLATE "C" AND p.name < behind COLLATE "C" AND p.held AND NOT p.absent
       AND l.worker IS NULL AND l.ready_at < before
$$;

-- Skip the calls that have been expected for longer than `timeout`: they are in no queue until they
-- ask again, for which their lanes are made ready, and other calls are woken in their place. Returns
-- how many were skipped, and the sessions of all calls that were woken.
CREATE OR REPLACE FUNCTION outlast.skip_stale(timeout bigint, line text, behind text) RETURNS jsonb
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
              FROM outlast.overdue_permits(now - timeout, line, behind) AS o
             ORDER BY o.since
             LIMIT 100) AS p;
    IF names IS NULL THEN
        RETURN '[0, []]';
    END IF;
    PERFORM outlast.lock_limits(names, '[]');
    WITH
        overdue AS MATERIALIZED (
            SELECT p.tenant, p.sid, p.lane, p.pid
              FROM outlast.overdue_permits(now - timeout, line, behind) AS p
             WHERE names ? p.name
        ),
        free AS (
            SELECT l.tenant, l.sid, l.lane
              FROM outlast.lanes AS l
              JOIN (SELECT DISTINCT o.tenant, o.sid, o.lane FROM overdue AS o) AS e
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
               SET absent = true, held = false, expected_at = NULL
              FROM free AS f
              JOIN overdue AS o ON o.tenant = f.tenant AND o.sid = f.sid AND o.lane = f.lane
             WHERE p.tenant = ANY (ARRAY[f.tenant]) AND p.sid = f.sid AND p.lane = f.lane
               AND p.pid = o.pid
            RETURNING p.tenant, p.sid
        )
    SELECT count(*), coalesce(jsonb_agg(DISTINCT s.id), '[]') INTO passed, woken
      FROM missed AS m
      JOIN outlast.sessions AS s ON s.tenant = ANY (ARRAY[m.tenant]) AND s.sid = m.sid;
    woken := woken || outlast.wake_grantable(ARRAY(SELECT jsonb_array_elements_text(names)));
    RETURN jsonb_build_array(passed, woken);
END
$$;

-- Change how many calls may hold a permit at once under a limit, for those that wait; wake the lanes
-- of the calls that hold one or can have one now. Returns how many wait, and the sessions of the lanes
-- that were woken.
CREATE OR REPLACE FUNCTION outlast.resize_limit(limit_name text, concurrency integer) RETURNS jsonb
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
DECLARE
    now bigint := outlast.now_ms();
    waiting bigint;
    woken jsonb;
BEGIN
    PERFORM outlast.lock_limits(jsonb_build_array(limit_name), '[]');
    UPDATE outlast.limits AS m SET most = concurrency WHERE m.name = limit_name;
    UPDATE outlast.permits AS p
       SET most = concurrency
     WHERE p.name = limit_name AND NOT p.held AND NOT p.absent;
    GET DIAGNOSTICS waiting = ROW_COUNT;
    WITH
        holders AS (
            SELECT DISTINCT p.tenant, p.sid, p.lane
              FROM outlast.permits AS p
             WHERE p.name = limit_name AND p.held AND NOT p.absent
        ),
        free AS (
            SELECT l.tenant, l.sid, l.lane
              FROM holders AS h
              JOIN outlast.lanes AS l
                ON l.tenant = ANY (ARRAY[h.tenant]) AND l.sid = h.sid AND l.lane = h.lane
               FOR NO KEY UPDATE OF l SKIP LOCKED
        ),
        ready AS (
            UPDATE outlast.lanes AS l
               SET ready_at = least(l.ready_at, now)
              FROM free AS f
             WHERE l.tenant = ANY (ARRAY[f.tenant]) AND l.sid = f.sid AND l.lane = f.lane
        )
    SELECT coalesce(jsonb_agg(DISTINCT s.id), '[]') INTO woken
      FROM holders AS h
      JOIN outlast.sessions AS s ON s.tenant = ANY (ARRAY[h.tenant]) AND s.sid = h.sid;
    woken := woken || outlast.wake_grantable(ARRAY[limit_name]);
    RETURN jsonb_build_array(waiting, woken);
END
$$;
