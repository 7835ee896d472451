-- name: session_to_erase
SELECT sid, tenant FROM outlast_sessions WHERE id = :session_id;

-- name: erase_permits
DELETE FROM outlast_permits
 WHERE lid IN (SELECT lid FROM outlast_lanes WHERE sid = :sid)
RETURNING name;

-- name: strip_deliveries
-- What stays is the name that a dispatch can be known again by, and the number that no other
-- session is to get.
UPDATE outlast_deliveries
   SET lane = NULL, kind = '', position = 0, state = 'settled', outcome = NULL, turn = NULL,
       settled_offset = NULL, failure_code = NULL, failed_at = NULL, fingerprint = zeroblob(16)
 WHERE key BETWEEN :base AND :top;

-- name: erase_requests
DELETE FROM outlast_requests WHERE sid = :sid;

-- name: erase_tokens
DELETE FROM outlast_tokens WHERE sid = :sid;

-- name: erase_tags
DELETE FROM outlast_tags WHERE sid = :sid;

-- name: erase_snapshots
DELETE FROM outlast_snapshots WHERE lid IN (SELECT lid FROM outlast_lanes WHERE sid = :sid);

-- name: erase_slices
DELETE FROM outlast_slices WHERE sid = :sid;

-- name: erase_own_effects
DELETE FROM outlast_effects WHERE scope = 'session:' || :session_id;

-- name: forget_outcomes
-- Keys that other sessions share stay used, so that nothing is done twice.
UPDATE outlast_effects
   SET state = 'unknown', value = ''
 WHERE session_id = :session_id AND substr(scope, 1, 8) <> 'session:' AND state <> 'free';

-- name: erase_free_effects
-- The next call with such a key finds it free.
DELETE FROM outlast_effects
 WHERE session_id = :session_id AND substr(scope, 1, 8) <> 'session:' AND state = 'free';

-- name: erase_outbox_cursors
DELETE FROM outlast_outbox_cursors WHERE sid = :sid;

-- name: erase_dead_letters
DELETE FROM outlast_dead_letters WHERE sid = :sid;

-- name: mark_orphans
-- The sessions that it started are erased too, later (`find_orphans`).
UPDATE outlast_sessions SET orphaned = 1 WHERE parent = :session_id AND parent <> '';

-- name: erase_pins
DELETE FROM outlast_pins WHERE lid IN (SELECT lid FROM outlast_lanes WHERE sid = :sid);

-- name: erase_lanes
-- Their owners find nothing to commit to.
DELETE FROM outlast_lanes WHERE sid = :sid;

-- name: erase_session
DELETE FROM outlast_sessions WHERE sid = :sid;

-- name: orphans
-- Ids sort by the time they were made.
SELECT id FROM outlast_sessions WHERE orphaned ORDER BY id LIMIT :limit;

-- name: add_erasure
INSERT INTO outlast_erasures (sid) VALUES (:sid);

-- name: unfinished_erasure
SELECT sid FROM outlast_erasures ORDER BY sid LIMIT 1;

-- name: end_erasure
DELETE FROM outlast_erasures WHERE sid = :sid;

-- name: log_sizes
-- The length of a blob is known without reading it.
SELECT key, length(data) FROM outlast_log WHERE key BETWEEN :base AND :top ORDER BY key;

-- name: erase_log
DELETE FROM outlast_log WHERE key BETWEEN :base AND :top;

-- name: blobs_of_session
SELECT u.tenant, u.hash, coalesce(length(b.data), 0)
  FROM outlast_blob_users AS u
  LEFT JOIN outlast_blobs AS b ON b.tenant = u.tenant AND b.hash = u.hash
 WHERE u.sid = :sid;

-- name: erase_unshared_blob
DELETE FROM outlast_blobs
 WHERE tenant = :tenant
   AND hash = :hash
   AND NOT EXISTS (SELECT 1
                     FROM outlast_blob_users AS u
                    WHERE u.tenant = :tenant AND u.hash = :hash AND u.sid <> :sid);

-- name: let_go_of_blob
DELETE FROM outlast_blob_users WHERE tenant = :tenant AND hash = :hash AND sid = :sid;
