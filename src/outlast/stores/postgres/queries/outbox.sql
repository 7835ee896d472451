-- name: take_outbox_cursors
-- A cursor that another transaction has locked is skipped, so this waits for no lock. If the answer
-- is lost, the cursors can be taken again when the hold on them is over.
WITH
    due AS (
        SELECT o.tenant, o.sid, o.name
          FROM outlast.outbox_cursors AS o
         WHERE o.due_at <= outlast.now_ms() AND o.held_until <= outlast.now_ms()
         ORDER BY o.due_at, o.sid, o.name
         LIMIT :limit
           FOR UPDATE SKIP LOCKED
    ),
    taken AS (
        UPDATE outlast.outbox_cursors AS o
           SET held = o.held + 1, held_until = outlast.now_ms() + :hold
          FROM due AS d
         WHERE o.tenant = d.tenant AND o.sid = d.sid AND o.name = d.name
        RETURNING o.*
    )
SELECT s.id, s.tenant, s.agent, o.name, o.url, o.secret, o.events::text, o.position, o.told, o.held,
       o.due_at, o.tries, o.error
  FROM taken AS o
  JOIN outlast.sessions AS s ON s.tenant = o.tenant AND s.sid = o.sid
 ORDER BY o.due_at, o.sid, o.name;

-- name: settle_outbox_cursor
-- Locks one row, and waits for no other after that. Settling twice has the effect of settling once.
WITH
    settled AS (
        UPDATE outlast.outbox_cursors AS o
           SET position = :position,
               due_at = CASE WHEN :again_at::bigint IS NULL AND o.told <> :told
                             THEN outlast.now_ms() ELSE :again_at END,
               tries = :tries,
               error = :error,
               held_until = 0
          FROM outlast.sessions AS s
         WHERE s.id = :session_id
           AND o.tenant = s.tenant AND o.sid = s.sid AND o.name = :name
           AND o.held = :held
        RETURNING o.tenant, o.sid, o.name
    ),
    written AS (
        INSERT INTO outlast.dead_letters (tenant, sid, cursor_name, event_offset, type, error, at)
        SELECT o.tenant, o.sid, o.name, d.offset, d.type, d.error, d.at
          FROM settled AS o
         CROSS JOIN ROWS FROM (jsonb_to_recordset(:dead) AS (
                        "offset" integer, type text, error text, at bigint
                    )) WITH ORDINALITY AS d ("offset", type, error, at, place)
         ORDER BY d.place
            ON CONFLICT DO NOTHING
    )
SELECT 1 FROM settled;

-- name: outbox_cursors
SELECT s.id, s.tenant, s.agent, o.name, o.url, o.secret, o.events::text, o.position, o.told, o.held,
       o.due_at, o.tries, o.error
  FROM outlast.outbox_cursors AS o
  JOIN outlast.sessions AS s ON s.tenant = o.tenant AND s.sid = o.sid
 WHERE (:session_id::text IS NULL OR s.id = :session_id)
   AND (:tenant::text IS NULL OR o.tenant = :tenant)
   AND (NOT :failing_only OR o.tries > 0)
 ORDER BY s.id DESC, o.name
 LIMIT :limit;

-- name: next_due_at
SELECT min(o.due_at) FROM outlast.outbox_cursors AS o WHERE o.due_at IS NOT NULL;

-- name: dead_letters
SELECT s.id, d.tenant, d.cursor_name, d.event_offset, d.type, d.error, d.at
  FROM outlast.dead_letters AS d
 CROSS JOIN LATERAL (
           SELECT r.id
             FROM outlast.sessions AS r
            WHERE r.tenant = d.tenant AND r.sid = d.sid
            LIMIT 1
       ) AS s
 WHERE (:session_id::text IS NULL
        OR (d.tenant, d.sid) = (SELECT r.tenant, r.sid
                                  FROM outlast.sessions AS r
                                 WHERE r.id = :session_id))
   AND (:tenant::text IS NULL OR d.tenant = :tenant)
 ORDER BY d.did DESC
 LIMIT :limit;
