-- Take a session away with all that is known of it; the answer is the ids of sessions that
-- somebody was woken in, or nothing where there was no session.
--
-- Limits come first, as everywhere. Whoever writes to the session holds its row, so when this has it nobody is at it, and who
-- comes later finds no session. A claim, a wish for a permit and the settling of an outbox cursor hold
-- less: a lane, an outbox cursor. Those are taken first too, each before what hangs on it is deleted,
-- and every statement here sees what was written before it got its lock.
CREATE OR REPLACE FUNCTION outlast.erase(session text) RETURNS jsonb
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
    SELECT coalesce(jsonb_agg(jsonb_build_object('session', session, 'lane', l.lane)), '[]')
      INTO freeing
      FROM outlast.sessions AS r
      JOIN outlast.lanes AS l ON l.tenant = r.tenant AND l.sid = r.sid
     WHERE r.id = session;
    PERFORM outlast.hold_limits('[]', freeing);
    SELECT r.tenant, r.sid INTO s FROM outlast.sessions AS r WHERE r.id = session FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM outlast.seize_blobs(s.tenant, s.sid);
    PERFORM 1
       FROM outlast.lanes AS l
      WHERE l.tenant = s.tenant AND l.sid = s.sid
      ORDER BY l.lane
        FOR UPDATE;

    DELETE FROM outlast.outbox_cursors AS o WHERE o.tenant = s.tenant AND o.sid = s.sid;
    DELETE FROM outlast.dead_letters AS d WHERE d.tenant = s.tenant AND d.sid = s.sid;
    DELETE FROM outlast.log AS g WHERE g.tenant = s.tenant AND g.sid = s.sid;
    DELETE FROM outlast.snapshots AS n WHERE n.tenant = s.tenant AND n.sid = s.sid;
    DELETE FROM outlast.slices AS n WHERE n.tenant = s.tenant AND n.sid = s.sid;
    DELETE FROM outlast.requests AS q WHERE q.tenant = s.tenant AND q.sid = s.sid;
    DELETE FROM outlast.tokens AS t WHERE t.tenant = s.tenant AND t.sid = s.sid;
    PERFORM outlast.forget_deliveries(s.tenant, s.sid);
    PERFORM outlast.forget_effects(s.tenant, session);
    PERFORM outlast.release_blobs(s.tenant, s.sid);
    SELECT coalesce(jsonb_agg(p), '[]')
      INTO freeing
      FROM (SELECT session, c.lane, jsonb_agg(DISTINCT c.call_id) AS frees
              FROM outlast.permits AS c
             WHERE c.tenant = s.tenant AND c.sid = s.sid
             GROUP BY c.lane) AS p;
    freeing := outlast.free_permits(freeing);
    PERFORM outlast.doom_children(session, s.tenant, s.sid);
    DELETE FROM outlast.lanes AS l WHERE l.tenant = s.tenant AND l.sid = s.sid;
    DELETE FROM outlast.sessions AS r WHERE r.tenant = s.tenant AND r.sid = s.sid;
    RETURN freeing;
END
$$;

-- What the session started is to be erased too, by whoever sees it. All that the session added
-- is here: who was about to add more waits for it, and is refused. Rows are held in their order,
-- since a child may be erased at the same time.
CREATE OR REPLACE FUNCTION outlast.doom_children(session text, owner text, own_sid bigint)
    RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
       FROM outlast.children AS c
      WHERE c.parent = session OR (c.tenant = owner AND c.sid = own_sid)
      ORDER BY c.sid
        FOR UPDATE;
    UPDATE outlast.children AS c SET doomed = true WHERE c.parent = session;
    DELETE FROM outlast.children AS c WHERE c.tenant = owner AND c.sid = own_sid;
END
$$;

-- Of deliveries the names stay, so that one that is sent again is known for what it is.
CREATE OR REPLACE FUNCTION outlast.forget_deliveries(owner text, session bigint) RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO outlast.dispatches (tenant, name, sid, arrival)
    SELECT d.tenant, outlast.name_of(d.id), d.sid, d.arrival
      FROM outlast.deliveries AS d
     WHERE d.tenant = owner AND d.sid = session
        ON CONFLICT DO NOTHING;
    DELETE FROM outlast.deliveries AS d WHERE d.tenant = owner AND d.sid = session;
$$;

-- A session's own idempotency keys go with it. One that other sessions share stays used, and
-- nobody knows any more what came of it; one that is free is nobody's.
CREATE OR REPLACE FUNCTION outlast.forget_effects(owner text, session text) RETURNS void
    LANGUAGE sql
AS $$
    DELETE FROM outlast.effects AS e
     WHERE e.scope = 'session:' || session AND e.tenant IS NOT DISTINCT FROM owner;
    DELETE FROM outlast.effects AS e
     WHERE e.tenant = owner AND e.session_id = session AND e.state = 'free';
    UPDATE outlast.effects AS e
       SET state = 'unknown', value = ''
     WHERE e.tenant = owner AND e.session_id = session;
$$;
