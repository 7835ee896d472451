-- name: arm_schedule
-- One that means the same as before goes on where it was; a paused one stays so whatever it means.
INSERT INTO outlast.schedules AS s (name, fingerprint, next_at, paused, fired_at, session_id)
VALUES (:name, :fingerprint, :next_at, :paused, :fired_at, :session_id)
    ON CONFLICT (name) DO UPDATE
   SET fingerprint = excluded.fingerprint,
       next_at = excluded.next_at,
       fired_at = excluded.fired_at,
       session_id = excluded.session_id
 WHERE s.fingerprint <> excluded.fingerprint;

-- name: schedules
SELECT s.name, s.fingerprint, s.next_at, s.paused, s.fired_at, s.session_id
  FROM outlast.schedules AS s
 ORDER BY s.name;

-- name: advance_schedule
-- Of two who saw it due, the second finds it moved on.
UPDATE outlast.schedules AS s
   SET next_at = :next_at, fired_at = :fired_at, session_id = :session_id
 WHERE s.name = :name AND s.next_at IS NOT DISTINCT FROM :seen
RETURNING 1;

-- name: pause_schedule
UPDATE outlast.schedules AS s SET paused = :paused WHERE s.name = :name RETURNING 1;

-- name: drop_schedule
DELETE FROM outlast.schedules AS s WHERE s.name = :name RETURNING 1;
