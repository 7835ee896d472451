-- name: take_outbox_cursors
-- One statement, so of two processes that ask at once only one is given an outbox cursor.
UPDATE outlast_outbox_cursors
   SET held = held + 1, held_until = :now + :hold
 WHERE oid IN (SELECT oid
                 FROM outlast_outbox_cursors
                WHERE due_at <= :now AND held_until <= :now
                ORDER BY due_at, oid
                LIMIT :limit)
RETURNING oid;

-- name: taken_outbox_cursors
SELECT s.id, s.tenant, s.agent, o.name, o.url, o.secret, o.events, o.position, o.told, o.held, o.due_at,
       o.tries, o.error
  FROM outlast_outbox_cursors AS o
  JOIN outlast_sessions AS s ON s.sid = o.sid
 WHERE o.oid IN (SELECT value FROM json_each(:taken))
 ORDER BY o.due_at, o.oid;

-- name: settle_outbox_cursor
-- Nothing changes if it was given to another process meanwhile. What was told since it was taken
-- makes it due at once.
UPDATE outlast_outbox_cursors
   SET position = :position,
       due_at = iif(:again_at IS NULL AND told <> :told, :now, :again_at),
       tries = :tries,
       error = :error,
       held_until = 0
 WHERE sid = (SELECT sid FROM outlast_sessions WHERE id = :session_id)
   AND name = :name
   AND held = :held
RETURNING sid;

-- name: add_dead_letters
-- JSON rows of outbox cursor, offset, type, error and time.
INSERT INTO outlast_dead_letters (sid, cursor_name, event_offset, type, error, at)
SELECT :sid, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
  FROM json_each(:dead)
 ORDER BY key;

-- name: outbox_cursors
-- CROSS: sessions that have no outbox cursor are not looked at.
SELECT s.id, s.tenant, s.agent, o.name, o.url, o.secret, o.events, o.position, o.told, o.held, o.due_at,
       o.tries, o.error
  FROM outlast_outbox_cursors AS o
 CROSS JOIN outlast_sessions AS s ON s.sid = o.sid
 WHERE (:tenant IS NULL OR s.tenant = :tenant)
   AND (o.tries OR NOT :failing_only)
 ORDER BY s.id DESC, o.name
 LIMIT :limit;

-- name: outbox_cursors_of_session
SELECT s.id, s.tenant, s.agent, o.name, o.url, o.secret, o.events, o.position, o.told, o.held, o.due_at,
       o.tries, o.error
  FROM outlast_sessions AS s
  JOIN outlast_outbox_cursors AS o ON o.sid = s.sid
 WHERE s.id = :session_id
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (o.tries OR NOT :failing_only)
 ORDER BY o.name
 LIMIT :limit;

-- name: next_due_at
SELECT min(due_at) FROM outlast_outbox_cursors WHERE due_at IS NOT NULL;

-- name: dead_letters
SELECT s.id, s.tenant, d.cursor_name, d.event_offset, d.type, d.error, d.at
  FROM outlast_dead_letters AS d
 CROSS JOIN outlast_sessions AS s ON s.sid = d.sid
 WHERE :tenant IS NULL OR s.tenant = :tenant
 ORDER BY d.did DESC
 LIMIT :limit;

-- name: dead_letters_of_session
SELECT s.id, s.tenant, d.cursor_name, d.event_offset, d.type, d.error, d.at
  FROM outlast_sessions AS s
  JOIN outlast_dead_letters AS d ON d.sid = s.sid
 WHERE s.id = :session_id AND (:tenant IS NULL OR s.tenant = :tenant)
 ORDER BY d.did DESC
 LIMIT :limit;
