-- name: session
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token,
       (SELECT jsonb_agg(jsonb_build_array(l.lane, CASE WHEN l.status = 'idle' AND l.queued > 0
                                                        THEN 'queued' ELSE l.status END,
                                           l.turn, coalesce(l.worker, ''), l.fence, l.ready_at,
                                           l.queued)
                         ORDER BY l.lid)
          FROM holdfast.lanes AS l
         WHERE l.tenant = s.tenant AND l.sid = s.sid)::text
  FROM holdfast.session_list AS s
 WHERE s.id = :session_id;

-- name: sessions
-- Ids sort by the time they were made.
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token,
       (SELECT jsonb_agg(jsonb_build_array(l.lane, CASE WHEN l.status = 'idle' AND l.queued > 0
                                                        THEN 'queued' ELSE l.status END,
                                           l.turn, coalesce(l.worker, ''), l.fence, l.ready_at,
                                           l.queued)
                         ORDER BY l.lid)
          FROM holdfast.lanes AS l
         WHERE l.tenant = s.tenant AND l.sid = s.sid)::text
  FROM holdfast.session_list AS s
 WHERE (:before::text IS NULL OR s.id < :before)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL OR s.status = :status)
 ORDER BY s.id DESC
 LIMIT :limit;

-- name: sessions_of_tenant
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token,
       (SELECT jsonb_agg(jsonb_build_array(l.lane, CASE WHEN l.status = 'idle' AND l.queued > 0
                                                        THEN 'queued' ELSE l.status END,
                                           l.turn, coalesce(l.worker, ''), l.fence, l.ready_at,
                                           l.queued)
                         ORDER BY l.lid)
          FROM holdfast.lanes AS l
         WHERE l.tenant = s.tenant AND l.sid = s.sid)::text
  FROM holdfast.session_list AS s
 WHERE s.tenant = :tenant
   AND (:before::text IS NULL OR s.id < :before)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL OR s.status = :status)
 ORDER BY s.id DESC
 LIMIT :limit;

-- name: delivery
SELECT s.id, d.lane, d.id, d.kind, d.state, coalesce(d.outcome, ''), coalesce(d.turn, ''),
       d.arrival, coalesce(d.settled_offset, 0)
  FROM holdfast.deliveries AS d
  JOIN holdfast.sessions AS s ON s.tenant = d.tenant AND s.sid = d.sid
 WHERE d.id = :delivery_id;

-- name: deliveries
SELECT s.id, d.lane, d.id, d.kind, d.state, coalesce(d.outcome, ''), coalesce(d.turn, ''),
       d.arrival, coalesce(d.settled_offset, 0)
  FROM holdfast.sessions AS s
  JOIN holdfast.deliveries AS d ON d.tenant = s.tenant AND d.sid = s.sid
 WHERE s.id = :session_id
 ORDER BY d.arrival;

-- name: request
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM holdfast.requests AS q
  JOIN holdfast.sessions AS s ON s.tenant = q.tenant AND s.sid = q.sid
 WHERE q.id = :request_id;

-- name: requests_of_session
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM holdfast.sessions AS s
  JOIN holdfast.requests AS q ON q.tenant = s.tenant AND q.sid = s.sid
 WHERE s.id = :session_id AND (q.state = 'open' OR NOT :open_only)
 ORDER BY q.rid
 LIMIT :limit;

-- name: open_requests
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM holdfast.requests AS q
  JOIN holdfast.sessions AS s ON s.tenant = q.tenant AND s.sid = q.sid
 WHERE q.state = 'open'
 ORDER BY q.rid
 LIMIT :limit;

-- name: requests
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM holdfast.requests AS q
  JOIN holdfast.sessions AS s ON s.tenant = q.tenant AND s.sid = q.sid
 ORDER BY q.rid
 LIMIT :limit;

-- name: find_token
SELECT s.id
  FROM holdfast.tokens AS t
  JOIN holdfast.sessions AS s ON s.tenant = t.tenant AND s.sid = t.sid
 WHERE t.tenant = :tenant AND t.token = :token AND t.living AND s.over = '';

-- name: tokens
SELECT t.token, t.living
  FROM holdfast.sessions AS s
  JOIN holdfast.tokens AS t ON t.tenant = s.tenant AND t.sid = s.sid
 WHERE s.id = :session_id
 ORDER BY t.tid;

-- name: lanes
SELECT s.id, s.tenant, s.agent, l.lane,
       CASE WHEN l.status = 'idle' AND l.queued > 0 THEN 'queued' ELSE l.status END,
       l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued
  FROM holdfast.sessions AS s
  JOIN holdfast.lanes AS l ON l.tenant = s.tenant AND l.sid = s.sid
 WHERE (:session_id::text IS NULL OR s.id = :session_id)
   AND (:tenant::text IS NULL OR s.tenant = :tenant)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL
        OR :status = CASE WHEN l.status = 'idle' AND l.queued > 0 THEN 'queued' ELSE l.status END)
   AND (:worker::text IS NULL OR l.worker = :worker)
   AND (:after::text IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: permits
SELECT p.name, s.id, p.lane, p.call_id, p.held,
       CASE WHEN p.held THEN 0
            ELSE (SELECT count(*)
                    FROM holdfast.permits AS o
                   WHERE o.name = p.name AND NOT o.held AND o.pid < p.pid) END
  FROM holdfast.permits AS p
  JOIN holdfast.sessions AS s ON s.tenant = p.tenant AND s.sid = p.sid
 WHERE (:session_id::text IS NULL OR s.id = :session_id)
   AND (:name::text IS NULL OR p.name = :name)
 ORDER BY p.name, p.held DESC, p.pid
 LIMIT :limit;
