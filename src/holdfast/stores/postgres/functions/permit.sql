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

-- A permit under one limit. A call that asks for the first time goes to the end of its queue.
CREATE OR REPLACE FUNCTION holdfast.ask_for_permit(
    owner text, session bigint, lane_name text, call text,
    limit_name text, concurrency integer, rate integer, per bigint
) RETURNS jsonb
    LANGUAGE plpgsql
AS $$
DECLARE
    now bigint := holdfast.now_ms();
    paid bigint;
    mine record;
    running bigint;
    ahead bigint;
    start_at bigint := now;
BEGIN
    INSERT INTO holdfast.limits (name) VALUES (limit_name) ON CONFLICT DO NOTHING;
    SELECT m.paid_until INTO paid FROM holdfast.limits AS m WHERE m.name = limit_name FOR UPDATE;
    INSERT INTO holdfast.permits AS p (name, tenant, sid, lane, call_id, most, held)
    VALUES (limit_name, owner, session, lane_name, call, concurrency, false)
        ON CONFLICT (tenant, sid, lane, call_id, name) DO UPDATE SET most = excluded.most
    RETURNING p.pid, p.held INTO mine;
    IF mine.held THEN
        RETURN '["granted"]';
    END IF;
    SELECT count(*) INTO running FROM holdfast.permits AS p WHERE p.name = limit_name AND p.held;
    SELECT count(*) INTO ahead
      FROM holdfast.permits AS p
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
        UPDATE holdfast.limits AS m
           SET paid_until = greatest(paid, now)
                            + greatest(1, round(per::double precision / rate)::bigint)
         WHERE m.name = limit_name;
    END IF;
    IF concurrency > 0 THEN
        UPDATE holdfast.permits AS p
           SET held = true
         WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name
           AND p.call_id = call AND p.name = limit_name;
    ELSE
        DELETE FROM holdfast.permits AS p
         WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name
           AND p.call_id = call AND p.name = limit_name;
    END IF;
    RETURN '["granted"]';
END
$$;

-- Take back the permits and places of calls that commits have freed, and wake who has a place
-- by that; returns the sessions of those. A lane that somebody has in hand is passed over:
-- its owner is awake, or is about to rest, waits for the limit and will look again.
CREATE OR REPLACE FUNCTION holdfast.free_permits(commits jsonb) RETURNS jsonb
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
    now := holdfast.now_ms();
    SELECT array_agg(DISTINCT p.name) INTO names
      FROM jsonb_to_recordset(commits) AS c (session text, lane text, frees jsonb)
      JOIN holdfast.sessions AS s ON s.id = c.session
      JOIN holdfast.permits AS p ON p.tenant = s.tenant AND p.sid = s.sid AND p.lane = c.lane
     WHERE c.frees ? p.call_id;
    PERFORM 1 FROM holdfast.limits AS m WHERE m.name = ANY (names) ORDER BY m.name FOR UPDATE;
    DELETE FROM holdfast.permits AS p
     USING jsonb_to_recordset(commits) AS c (session text, lane text, frees jsonb),
           holdfast.sessions AS s
     WHERE s.id = c.session
       AND p.tenant = s.tenant AND p.sid = s.sid AND p.lane = c.lane AND c.frees ? p.call_id;
    WITH
        free AS (
            SELECT l.tenant, l.sid, l.lane
              FROM holdfast.lanes AS l
             WHERE (l.tenant, l.sid, l.lane) IN (SELECT w.tenant, w.sid, w.lane
                                                   FROM holdfast.with_a_place(names) AS w)
               FOR NO KEY UPDATE SKIP LOCKED
        ),
        ready AS (
            UPDATE holdfast.lanes AS l
               SET ready_at = least(l.ready_at, now)
              FROM free AS f
             WHERE l.tenant = f.tenant AND l.sid = f.sid AND l.lane = f.lane
        )
    SELECT coalesce(jsonb_agg(DISTINCT s.id), '[]') INTO woken
      FROM holdfast.with_a_place(names) AS w
      JOIN holdfast.sessions AS s ON s.tenant = w.tenant AND s.sid = w.sid;
    RETURN woken;
END
$$;

-- The lanes whose calls have a place under one of the limits now.
CREATE OR REPLACE FUNCTION holdfast.with_a_place(names text[])
    RETURNS TABLE (tenant text, sid bigint, lane text)
    LANGUAGE sql STABLE
AS $$
    SELECT w.tenant, w.sid, w.lane
      FROM (SELECT p.name, p.tenant, p.sid, p.lane, p.most,
                   row_number() OVER (PARTITION BY p.name ORDER BY p.pid) AS place
              FROM holdfast.permits AS p
             WHERE p.name = ANY (names) AND NOT p.held AND p.most > 0) AS w
     WHERE w.place + (SELECT count(*)
                        FROM holdfast.permits AS p
                       WHERE p.name = w.name AND p.held) <= w.most
$$;

-- Whether a call of a lane that waits has a place under its limit now. The limits are held to
-- the transaction's end: who frees a permit meanwhile finds the lane at rest, and wakes it.
CREATE OR REPLACE FUNCTION holdfast.has_permit_to_come(owner text, session bigint, lane_name text)
    RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    names text[];
BEGIN
    SELECT array_agg(DISTINCT p.name) INTO names
      FROM holdfast.permits AS p
     WHERE p.tenant = owner AND p.sid = session AND p.lane = lane_name AND NOT p.held;
    PERFORM 1 FROM holdfast.limits AS m WHERE m.name = ANY (names) ORDER BY m.name FOR UPDATE;
    RETURN EXISTS (SELECT 1
                     FROM holdfast.with_a_place(names) AS w
                    WHERE w.tenant = owner AND w.sid = session AND w.lane = lane_name);
END
$$;
