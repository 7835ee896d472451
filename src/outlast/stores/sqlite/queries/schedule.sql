-- name: arm_schedule
-- One that means the same as before goes on where it was; a paused one stays so whatever it means.
INSERT INTO outlast_schedules (name, fingerprint, next_at, paused, fired_at, session_id)
VALUES (:name, :fingerprint, :next_at, :paused, :fired_at, :session_id)
    ON CONFLICT (name) DO UPDATE
   SET fingerprint = excluded.fingerprint,
       next_at = excluded.next_at,
       fired_at = excluded.fired_at,
       session_id = excluded.session_id
 WHERE outlast_schedules.fingerprint <> excluded.fingerprint;

-- name: schedules
SELECT name, fingerprint, next_at, paused, fired_at, session_id
  FROM outlast_schedules
 ORDER BY name;

-- name: advance_schedule
-- Of two who saw it due, the second finds it moved on.
UPDATE outlast_schedules
   SET next_at = :next_at, fired_at = :fired_at, session_id = :session_id
 WHERE name = :name AND next_at IS :seen;

-- name: pause_schedule
UPDATE outlast_schedules SET paused = :paused WHERE name = :name;

-- name: drop_schedule
DELETE FROM outlast_schedules WHERE name = :name;
