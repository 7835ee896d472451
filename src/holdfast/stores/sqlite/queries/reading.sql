-- name: session_of_log
-- The end of the log is that of its last row.
SELECT s.sid, s.tenant, (g.key & 4294967295) + g.count - 1, g.at
  FROM holdfast_sessions AS s
  JOIN holdfast_log AS g ON g.key = (SELECT max(key)
                                       FROM holdfast_log
                                      WHERE key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295)
 WHERE s.id = :session_id;

-- name: log_after
-- From the row on that holds the first offset asked for; it may begin before it.
SELECT key, count, lane, at, data
  FROM holdfast_log
 WHERE key >= coalesce((SELECT max(key) FROM holdfast_log WHERE key BETWEEN :base AND :first), :first)
   AND key <= :last
 ORDER BY key
 LIMIT :limit;

-- name: log_before
SELECT key, count, lane, at, data
  FROM holdfast_log
 WHERE key >= :base AND key < :before
 ORDER BY key DESC
 LIMIT :limit;

-- name: log_of_lane
-- A lane's own rows, and those of others that concern it: slices, the session's start and end.
SELECT key, count, lane, at, data
  FROM holdfast_log
 WHERE key >= coalesce((SELECT max(key) FROM holdfast_log WHERE key BETWEEN :base AND :first), :first)
   AND key <= :last
   AND (lane IS :lane OR marks & 6)
 ORDER BY key;

-- name: snapshot
SELECT n.offset, n.fold, n.data
  FROM holdfast_lanes AS l
  JOIN holdfast_snapshots AS n ON n.lid = l.lid
 WHERE l.sid = :sid AND l.lane = :lane AND n.fold = :fold;

-- name: slices
SELECT offset, fold, data FROM holdfast_slices WHERE sid = :sid AND fold = :fold;

-- name: blob
SELECT data FROM holdfast_blobs WHERE tenant = :tenant AND hash = :hash;

-- name: session
SELECT s.sid, s.id, s.tenant, s.agent, s.mode, s.created_at, s.over,
       coalesce((SELECT token
                   FROM holdfast_tokens AS t
                  WHERE t.sid = s.sid AND living
                  ORDER BY tid DESC
                  LIMIT 1), ''),
       g.at, (g.key & 4294967295) + g.count - 1
  FROM holdfast_sessions AS s
  JOIN holdfast_log AS g ON g.key = (SELECT max(key)
                                       FROM holdfast_log
                                      WHERE key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295)
 WHERE s.id = :session_id;

-- name: sessions
-- Ids sort by the time they were made. A session is what its liveliest lane is.
SELECT s.sid, s.id, s.tenant, s.agent, s.mode, s.created_at, s.over,
       coalesce((SELECT token
                   FROM holdfast_tokens AS t
                  WHERE t.sid = s.sid AND living
                  ORDER BY tid DESC
                  LIMIT 1), ''),
       g.at, (g.key & 4294967295) + g.count - 1
  FROM holdfast_sessions AS s
  JOIN holdfast_log AS g ON g.key = (SELECT max(key)
                                       FROM holdfast_log
                                      WHERE key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295)
 WHERE (:tenant IS NULL OR s.tenant = :tenant)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:before IS NULL OR s.id < :before)
   AND (:status IS NULL
        OR :status = iif(s.over <> '', s.over,
           (SELECT CASE min(CASE
                            WHEN l.status = 'running' THEN 1
                            WHEN l.status = 'queued' OR l.status = 'idle' AND l.queued THEN 2
                            WHEN l.status = 'waiting' THEN 3
                            WHEN l.status = 'sleeping' THEN 4
                            ELSE 5 END)
                   WHEN 1 THEN 'running'
                   WHEN 2 THEN 'queued'
                   WHEN 3 THEN 'waiting'
                   WHEN 4 THEN 'sleeping'
                   ELSE 'idle' END
              FROM holdfast_lanes AS l
             WHERE l.sid = s.sid)))
 ORDER BY s.id DESC
 LIMIT :limit;

-- name: lanes
SELECT lane, iif(status = 'idle' AND queued, 'queued', status), turn, coalesce(worker, ''),
       fence, ready_at, queued
  FROM holdfast_lanes
 WHERE sid = :sid
 ORDER BY lid;

-- name: delivery
SELECT s.id, d.lane, d.id, d.kind, d.state, d.outcome, d.turn, d.key, d.settled_offset
  FROM holdfast_deliveries AS d
  JOIN holdfast_sessions AS s ON s.sid = d.key >> 32
 WHERE d.id = :delivery_id;

-- name: deliveries
SELECT s.id, d.lane, d.id, d.kind, d.state, d.outcome, d.turn, d.key, d.settled_offset
  FROM holdfast_sessions AS s
  JOIN holdfast_deliveries AS d ON d.key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295
 WHERE s.id = :session_id
 ORDER BY d.key;

-- name: request
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM holdfast_requests AS q
  JOIN holdfast_sessions AS s ON s.sid = q.sid
 WHERE q.id = :request_id;

-- name: requests_of_session
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM holdfast_sessions AS s
  JOIN holdfast_requests AS q ON q.sid = s.sid
 WHERE s.id = :session_id AND (q.state = 'open' OR NOT :open_only)
 ORDER BY q.rid
 LIMIT :limit;

-- name: open_requests
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM holdfast_requests AS q
  JOIN holdfast_sessions AS s ON s.sid = q.sid
 WHERE q.state = 'open'
 ORDER BY q.rid
 LIMIT :limit;

-- name: requests
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM holdfast_requests AS q
  JOIN holdfast_sessions AS s ON s.sid = q.sid
 ORDER BY q.rid
 LIMIT :limit;

-- name: find_token
SELECT s.id
  FROM holdfast_tokens AS t
  JOIN holdfast_sessions AS s ON s.sid = t.sid
 WHERE t.tenant = :tenant AND t.token = :token AND t.living;

-- name: tokens
SELECT t.token, t.living
  FROM holdfast_sessions AS s
  JOIN holdfast_tokens AS t ON t.sid = s.sid
 WHERE s.id = :session_id
 ORDER BY t.tid;
