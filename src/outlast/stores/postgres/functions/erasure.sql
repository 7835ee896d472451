-- Delete a session and everything about it. Returns the ids of sessions in which a call that waits
-- for a permit was woken; NULL if there was no session.
--
-- Limits are locked first, as everywhere. Every transaction that writes to the session locks its row,
-- so once this one has it no other is at work there, and a later one finds no session. A claim, a
-- permit request and the settling of an outbox cursor lock less: a lane, an outbox cursor. Those rows
-- are locked too, each before the rows that depend on it are deleted, and every statement here sees
-- what was written before it got its lock.
CREATE OR REPLACE FUNCTION outlast.erase(session text) RETURNS jsonb
    LANGUAGE plpgsql
    -- See write.sql; for the functions called from here as well.
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
    PERFORM outlast.lock_limits('[]', freeing);
    SELECT r.tenant, r.sid INTO s FROM outlast.sessions AS r WHERE r.id = session FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM outlast.lock_blobs(s.tenant, s.sid);
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
    DELETE FROM outlast.tags AS t WHERE t.tenant = s.tenant AND t.sid = s.sid;
    PERFORM outlast.forget_deliveries(s.tenant, s.sid);
    PERFORM outlast.forget_effects(s.tenant, session);
    PERFORM outlast.unlink_blobs(s.tenant, s.sid);
    SELECT coalesce(jsonb_agg(p), '[]')
      INTO freeing
      FROM (SELECT session, c.lane, jsonb_agg(DISTINCT c.call_id) AS frees
              FROM outlast.permits AS c
             WHERE c.tenant = s.tenant AND c.sid = s.sid
             GROUP BY c.lane) AS p;
    freeing := outlast.free_permits(freeing);
    PERFORM outlast.mark_orphans(session, s.tenant, s.sid);
    DELETE FROM outlast.pins AS p WHERE p.tenant = s.tenant AND p.sid = s.sid;
    DELETE FROM outlast.lanes AS l WHERE l.tenant = s.tenant AND l.sid = s.sid;
    DELETE FROM outlast.sessions AS r WHERE r.tenant = s.tenant AND r.sid = s.sid;
    PERFORM outlast.keep_usage(s.tenant, s.sid);
    PERFORM outlast.erase_budget_uses(s.tenant, s.sid, session);
    RETURN freeing;
END
$$;

-- Mark the sessions that this one started: a worker erases them as well. No child is missing: a
-- transaction about to add one waits for the session, and is then refused. Rows are locked in order,
-- since a child may be erased at the same time.
CREATE OR REPLACE FUNCTION outlast.mark_orphans(session text, owner text, own_sid bigint)
    RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
       FROM outlast.children AS c
      WHERE c.parent = session OR (c.tenant = owner AND c.sid = own_sid)
      ORDER BY c.sid
        FOR UPDATE;
    UPDATE outlast.children AS c SET orphaned = true WHERE c.parent = session;
    DELETE FROM outlast.children AS c WHERE c.tenant = owner AND c.sid = own_sid;
END
$$;

-- Delete the deliveries and keep their names, so that one that is sent again is recognized.
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

-- Delete a session's own idempotency keys and those that are free. A key that it shares with other
-- sessions stays taken, its outcome unknown.
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
