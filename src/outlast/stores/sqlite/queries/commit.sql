-- name: find_lane
-- Where a commit goes: the lane as it is, the key of the session's next row and the time
-- of its last. The log's end is one step in the tree, to the left of the next session.
SELECT l.lid, l.sid, l.worker, l.fence, l.number, l.last_arrival, l.failed_at, g.key + g.count, g.at
  FROM outlast_sessions AS s
  JOIN outlast_lanes AS l ON l.sid = s.sid AND l.lane = :lane
  JOIN outlast_log AS g ON g.key = (SELECT max(key)
                                       FROM outlast_log
                                      WHERE key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295)
 WHERE s.id = :session_id;

-- name: digest
SELECT digest FROM outlast_lanes WHERE lid = :lid;

-- name: advance_lane
-- Nothing changes unless the worker owns the lane under this fence, and has made all its
-- commits so far. `worker` is not set here: the indexes of lanes stay as they are.
UPDATE outlast_lanes
   SET number = number + 1,
       status = :status,
       turn = :turn,
       wait = :wait,
       ready_at = :ready_at,
       version = max(version, :version),
       size = size + :size,
       digest = :digest
 WHERE lid = :lid AND worker = :worker AND fence = :fence AND number = :number;

-- name: advance_and_release_lane
-- The same, and the lane has no owner afterwards: this rewrites the indexes of lanes.
UPDATE outlast_lanes
   SET number = number + 1,
       status = :status,
       turn = :turn,
       wait = :wait,
       ready_at = :ready_at,
       version = max(version, :version),
       size = size + :size,
       digest = :digest,
       worker = NULL
 WHERE lid = :lid AND worker = :worker AND fence = :fence AND number = :number;

-- name: set_deaths
-- Apart from the above, as it changes an index and few commits do it.
UPDATE outlast_lanes
   SET deaths = :deaths, claimable_at = iif(:deaths = 0, 0, claimable_at)
 WHERE lid = :lid;

-- name: set_failure
-- Apart as well. A lane without a failure has none to clear: see `find_lane`.
UPDATE outlast_lanes
   SET failure_code = :code,
       failure_message = :message,
       failure_turn = :turn,
       failed_at = :failed_at
 WHERE lid = :lid;

-- name: last_row
-- Where a session's log ends.
SELECT key, count, at FROM outlast_log WHERE key BETWEEN :base AND :top ORDER BY key DESC LIMIT 1;

-- name: tell_outbox_cursors
-- The log has something new for them. A cursor that is due already stays due as it was.
UPDATE outlast_outbox_cursors SET told = told + 1, due_at = coalesce(due_at, :now) WHERE sid = :sid;

-- name: change_slices
UPDATE outlast_sessions SET slices_changed = :offset WHERE sid = :sid;

-- name: slices_changed_after
SELECT 1 FROM outlast_sessions WHERE sid = :sid AND slices_changed > :seen;

-- name: open_turn_elsewhere
SELECT 1 FROM outlast_lanes WHERE sid = :sid AND lid <> :lid AND turn <> '' LIMIT 1;

-- name: append
INSERT INTO outlast_log (key, count, lane, at, marks, data)
VALUES (:key, :records, :lane, :at, :marks, :data);

-- name: last_commit
-- The last row of a lane that its owner wrote.
SELECT key, count, at
  FROM outlast_log
 WHERE key BETWEEN :base AND :top AND lane IS :lane AND NOT marks & 1
 ORDER BY key DESC
 LIMIT 1;

-- name: tenant
SELECT tenant FROM outlast_sessions WHERE sid = :sid;

-- name: arrivals
-- The row that holds the first offset asked for may begin before it.
SELECT key, count, lane, at, data
  FROM outlast_log
 WHERE key >= coalesce((SELECT max(key) FROM outlast_log WHERE key BETWEEN :base AND :first), :first)
   AND key <= :last
   AND marks & 1
   AND lane IS :lane
 ORDER BY key;

-- name: leave_queue
-- Before a delivery's state changes: it counts no longer if it was one that waited.
UPDATE outlast_lanes
   SET queued = queued - 1
 WHERE lid = :lid
   AND EXISTS (SELECT 1
                 FROM outlast_deliveries AS d
                WHERE d.id = :delivery_id
                  AND d.key >> 32 = outlast_lanes.sid
                  AND coalesce(d.lane, 'main') = outlast_lanes.lane
                  AND d.state = 'queued'
                  AND d.kind IN ('message', 'retry'));

-- name: change_delivery
UPDATE outlast_deliveries
   SET state = :state, outcome = :outcome, turn = coalesce(:turn, turn),
       settled_offset = :settled_offset, failure_code = :code, failed_at = :failed_at
 WHERE id = :delivery_id;

-- name: open_request
INSERT INTO outlast_requests (id, tenant, sid, lane, kind, state, expires_at, data)
SELECT :request_id, tenant, sid, :lane, :kind, 'open', :expires_at, :data
  FROM outlast_sessions
 WHERE sid = :sid;

-- name: close_request
-- Its owner may do so: `answered_since` was asked before.
UPDATE outlast_requests SET state = :how WHERE id = :request_id;

-- name: answered_since
-- Whether an answer has arrived that the lane's owner has not seen.
SELECT 1 FROM outlast_requests WHERE id = :request_id AND answered_offset > :seen;

-- name: over
SELECT over FROM outlast_sessions WHERE sid = :sid;

-- name: owner_of_token
SELECT sid FROM outlast_tokens WHERE tenant = :tenant AND token = :token AND living;

-- name: forget_token
-- A session that takes a token again has it as its newest.
DELETE FROM outlast_tokens WHERE sid = :sid AND token = :token;

-- name: add_token
INSERT INTO outlast_tokens (tenant, token, sid, living) VALUES (:tenant, :token, :sid, 1);

-- name: revoke_token
UPDATE outlast_tokens SET living = 0 WHERE sid = :sid AND token = :token AND living;

-- name: end_session
-- A session that is over stays over, in the way in which it ended first.
UPDATE outlast_sessions SET over = :over WHERE sid = :sid AND over = '';

-- name: wake_other_lanes
-- A session's end concerns all its lanes: for each it is something that arrived.
UPDATE outlast_lanes
   SET last_arrival = :offset, ready_at = min(coalesce(ready_at, :now), :now)
 WHERE sid = :sid AND lid <> :lid;

-- name: kill_tokens
UPDATE outlast_tokens SET living = 0 WHERE sid = :sid AND living;

-- name: effect
SELECT scope, key, session_id, call_id, state, value
  FROM outlast_effects
 WHERE scope = :scope AND key = :key;

-- name: put_effect
INSERT INTO outlast_effects (tenant, scope, key, session_id, call_id, state, value)
VALUES (:tenant, :scope, :key, :session_id, :call_id, :state, :value)
    ON CONFLICT (scope, key) DO UPDATE
   SET session_id = excluded.session_id,
       call_id = excluded.call_id,
       state = excluded.state,
       value = excluded.value;

-- name: use_blob
-- Says whether the blob is there: the same content under the same tenant is written once. Says
-- nothing if the session has used it before, for then it is.
INSERT INTO outlast_blob_users (tenant, hash, sid) VALUES (:tenant, :hash, :sid)
    ON CONFLICT DO NOTHING
RETURNING EXISTS (SELECT 1 FROM outlast_blobs AS b WHERE b.tenant = :tenant AND b.hash = :hash);

-- name: put_blob
INSERT INTO outlast_blobs (tenant, hash, data) VALUES (:tenant, :hash, :data);

-- name: put_snapshot
INSERT INTO outlast_snapshots (lid, last_offset, fold, data) VALUES (:lid, :last_offset, :fold, :data)
    ON CONFLICT (lid) DO UPDATE
   SET last_offset = excluded.last_offset, fold = excluded.fold, data = excluded.data;

-- name: put_slices
-- Lanes share these: one that comes late with an older fold does not undo a newer one.
INSERT INTO outlast_slices (sid, last_offset, fold, data) VALUES (:sid, :last_offset, :fold, :data)
    ON CONFLICT (sid) DO UPDATE
   SET last_offset = excluded.last_offset, fold = excluded.fold, data = excluded.data
 WHERE excluded.last_offset >= outlast_slices.last_offset OR excluded.fold <> outlast_slices.fold;
