-- A list of one tenant has a statement of its own, which reads nothing of others: a key's list must
-- not cost what they have. There, `~` is behind all ids: with it a page begins where the last ended.

-- name: session
SELECT sid, id, tenant, agent, mode, status, created_at, updated_at, last_offset, over, token,
       parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM outlast_session_list AS v
 WHERE id = :session_id;

-- name: sessions
-- Ids sort by the time they were made.
SELECT sid, id, tenant, agent, mode, status, created_at, updated_at, last_offset, over, token,
       parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM outlast_session_list AS v
 WHERE id > :first
   AND (:before IS NULL OR id < :before)
   AND (:agent IS NULL OR agent = :agent)
   AND (:status IS NULL OR status = :status)
   AND (:parent IS NULL OR parent = :parent)
 ORDER BY id DESC
 LIMIT :limit;

-- name: sessions_of_tenant
SELECT sid, id, tenant, agent, mode, status, created_at, updated_at, last_offset, over, token,
       parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM outlast_session_list AS v
 WHERE tenant = :tenant
   AND id > :first
   AND id < coalesce(:before, '~')
   AND (:agent IS NULL OR agent = :agent)
   AND (:status IS NULL OR status = :status)
   AND (:parent IS NULL OR parent = :parent)
 ORDER BY id DESC
 LIMIT :limit;

-- name: sessions_of_tag
-- From the sessions with the first of the tags; the others are looked at in each. CROSS JOIN keeps
-- this order.
SELECT v.sid, v.id, v.tenant, v.agent, v.mode, v.status, v.created_at, v.updated_at, v.last_offset,
       v.over, v.token, v.parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM outlast_tags AS t
 CROSS JOIN outlast_session_list AS v ON v.sid = t.sid
 WHERE t.name = :tag_name
   AND t.value = :tag_value
   AND t.id > :first
   AND t.id < coalesce(:before, '~')
   AND (:agent IS NULL OR v.agent = :agent)
   AND (:status IS NULL OR v.status = :status)
   AND NOT EXISTS (SELECT 1
                     FROM json_each(:tags) AS w
                    WHERE NOT EXISTS (SELECT 1
                                        FROM outlast_tags AS o
                                       WHERE o.sid = v.sid AND o.name = w.key AND o.value = w.value))
 ORDER BY t.id DESC
 LIMIT :limit;

-- name: sessions_of_tag_of_tenant
SELECT v.sid, v.id, v.tenant, v.agent, v.mode, v.status, v.created_at, v.updated_at, v.last_offset,
       v.over, v.token, v.parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM outlast_tags AS t
 CROSS JOIN outlast_session_list AS v ON v.sid = t.sid
 WHERE t.tenant = :tenant
   AND t.name = :tag_name
   AND t.value = :tag_value
   AND t.id > :first
   AND t.id < coalesce(:before, '~')
   AND (:agent IS NULL OR v.agent = :agent)
   AND (:status IS NULL OR v.status = :status)
   AND NOT EXISTS (SELECT 1
                     FROM json_each(:tags) AS w
                    WHERE NOT EXISTS (SELECT 1
                                        FROM outlast_tags AS o
                                       WHERE o.sid = v.sid AND o.name = w.key AND o.value = w.value))
 ORDER BY t.id DESC
 LIMIT :limit;

-- name: sessions_of_parent
SELECT sid, id, tenant, agent, mode, status, created_at, updated_at, last_offset, over, token,
       parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM outlast_session_list AS v
 WHERE parent = :parent
   AND parent <> ''
   AND (:tenant IS NULL OR tenant = :tenant)
   AND id > :first
   AND (:before IS NULL OR id < :before)
   AND (:agent IS NULL OR agent = :agent)
   AND (:status IS NULL OR status = :status)
   AND NOT EXISTS (SELECT 1
                     FROM json_each(:tags) AS w
                    WHERE NOT EXISTS (SELECT 1
                                        FROM outlast_tags AS o
                                       WHERE o.sid = v.sid AND o.name = w.key AND o.value = w.value))
 ORDER BY id DESC
 LIMIT :limit;

-- name: lanes_of_session
SELECT lane, iif(queued AND (status = 'idle' OR failure_turn <> ''), 'queued', status), turn,
       coalesce(worker, ''), fence, ready_at, queued, deaths, claimable_at, size,
       failure_code, failure_message, failed_at, failure_turn, wait
  FROM outlast_lanes
 WHERE sid = :sid
 ORDER BY lid;

-- name: lanes_of_listed_session
-- A session may have very many. The lane that failed last is always among those that are listed.
SELECT lane, status, turn, worker, fence, ready_at, queued, deaths, claimable_at, size,
       failure_code, failure_message, failed_at, failure_turn, wait
  FROM (SELECT lid, lane,
               iif(queued AND (status = 'idle' OR failure_turn <> ''), 'queued', status) AS status,
               turn, coalesce(worker, '') AS worker, fence, ready_at, queued, deaths, claimable_at,
               size, failure_code, failure_message, failed_at, failure_turn, wait
          FROM outlast_lanes
         WHERE sid = :sid
         ORDER BY failed_at DESC, lid
         LIMIT :most)
 ORDER BY lid;

-- name: count_lanes
SELECT count(*) FROM outlast_lanes WHERE sid = :sid;

-- name: lanes
SELECT s.id, s.tenant, s.agent, l.lane,
       iif(l.queued AND (l.status = 'idle' OR l.failure_turn <> ''), 'queued', l.status) AS state,
       l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued,
       l.deaths, l.claimable_at, l.size,
       l.failure_code, l.failure_message, l.failed_at, l.failure_turn, l.wait
  FROM outlast_sessions AS s
  JOIN outlast_lanes AS l ON l.sid = s.sid
 WHERE (:session_id IS NULL OR s.id = :session_id)
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:status IS NULL OR state = :status)
   AND (:worker IS NULL OR l.worker = :worker)
   AND (:after IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: lanes_of_tenant
SELECT s.id, s.tenant, s.agent, l.lane,
       iif(l.queued AND (l.status = 'idle' OR l.failure_turn <> ''), 'queued', l.status) AS state,
       l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued,
       l.deaths, l.claimable_at, l.size,
       l.failure_code, l.failure_message, l.failed_at, l.failure_turn, l.wait
  FROM outlast_sessions AS s
  JOIN outlast_lanes AS l ON l.sid = s.sid
 WHERE s.tenant = :tenant
   AND s.id <= coalesce(:after, '~')
   AND (:session_id IS NULL OR s.id = :session_id)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:status IS NULL OR state = :status)
   AND (:worker IS NULL OR l.worker = :worker)
   AND (:after IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: failed_sessions
-- From the few lanes that have failed to their sessions: CROSS JOIN keeps this order.
SELECT v.sid, v.id, v.tenant, v.agent, v.mode, v.status, v.created_at, v.updated_at, v.last_offset,
       v.over, v.token, v.parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM (SELECT DISTINCT l.sid
          FROM outlast_lanes AS l
         WHERE l.failed_at > 0
           AND l.failed_at >= :since
           AND (:code IS NULL OR l.failure_code = :code)) AS f
 CROSS JOIN outlast_session_list AS v ON v.sid = f.sid
 WHERE v.over IN ('', 'failed')
   AND (:tenant IS NULL OR v.tenant = :tenant)
   AND v.id > :first
   AND (:before IS NULL OR v.id < :before)
   AND (:agent IS NULL OR v.agent = :agent)
   AND (:status IS NULL OR v.status = :status)
   AND (:parent IS NULL OR v.parent = :parent)
   AND NOT EXISTS (SELECT 1
                     FROM json_each(:tags) AS w
                    WHERE NOT EXISTS (SELECT 1
                                        FROM outlast_tags AS o
                                       WHERE o.sid = v.sid AND o.name = w.key AND o.value = w.value))
 ORDER BY v.id DESC
 LIMIT :limit;

-- name: failed_sessions_of_tenant
SELECT v.sid, v.id, v.tenant, v.agent, v.mode, v.status, v.created_at, v.updated_at, v.last_offset,
       v.over, v.token, v.parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM (SELECT DISTINCT l.sid
          FROM outlast_lanes AS l
         WHERE l.tenant = :tenant
           AND l.failed_at > 0
           AND l.failed_at >= :since
           AND (:code IS NULL OR l.failure_code = :code)) AS f
 CROSS JOIN outlast_session_list AS v ON v.sid = f.sid
 WHERE v.over IN ('', 'failed')
   AND v.id > :first
   AND (:before IS NULL OR v.id < :before)
   AND (:agent IS NULL OR v.agent = :agent)
   AND (:status IS NULL OR v.status = :status)
   AND (:parent IS NULL OR v.parent = :parent)
   AND NOT EXISTS (SELECT 1
                     FROM json_each(:tags) AS w
                    WHERE NOT EXISTS (SELECT 1
                                        FROM outlast_tags AS o
                                       WHERE o.sid = v.sid AND o.name = w.key AND o.value = w.value))
 ORDER BY v.id DESC
 LIMIT :limit;

-- name: failed_sessions_of_queue
SELECT v.sid, v.id, v.tenant, v.agent, v.mode, v.status, v.created_at, v.updated_at, v.last_offset,
       v.over, v.token, v.parent,
       (SELECT json_group_object(g.name, g.value) FROM outlast_tags AS g WHERE g.sid = v.sid)
  FROM (SELECT DISTINCT l.sid
          FROM outlast_lanes AS l
         WHERE l.queue = :queue
           AND l.queue <> ''
           AND l.failed_at > 0
           AND l.failed_at >= :since
           AND (:code IS NULL OR l.failure_code = :code)) AS f
 CROSS JOIN outlast_session_list AS v ON v.sid = f.sid
 WHERE v.over IN ('', 'failed')
   AND (:tenant IS NULL OR v.tenant = :tenant)
   AND v.id > :first
   AND (:before IS NULL OR v.id < :before)
   AND (:agent IS NULL OR v.agent = :agent)
   AND (:status IS NULL OR v.status = :status)
   AND (:parent IS NULL OR v.parent = :parent)
   AND NOT EXISTS (SELECT 1
                     FROM json_each(:tags) AS w
                    WHERE NOT EXISTS (SELECT 1
                                        FROM outlast_tags AS o
                                       WHERE o.sid = v.sid AND o.name = w.key AND o.value = w.value))
 ORDER BY v.id DESC
 LIMIT :limit;

-- name: failed_lanes
SELECT s.id, s.tenant, s.agent, l.lane,
       iif(l.queued AND (l.status = 'idle' OR l.failure_turn <> ''), 'queued', l.status) AS state,
       l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued,
       l.deaths, l.claimable_at, l.size,
       l.failure_code, l.failure_message, l.failed_at, l.failure_turn, l.wait
  FROM outlast_lanes AS l
 CROSS JOIN outlast_sessions AS s ON s.sid = l.sid
 WHERE l.failed_at > 0
   AND l.failed_at >= :since
   AND (:code IS NULL OR l.failure_code = :code)
   AND s.over IN ('', 'failed')
   AND (:session_id IS NULL OR s.id = :session_id)
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:status IS NULL OR state = :status)
   AND (:worker IS NULL OR l.worker = :worker)
   AND (:after IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: failed_lanes_of_tenant
SELECT s.id, s.tenant, s.agent, l.lane,
       iif(l.queued AND (l.status = 'idle' OR l.failure_turn <> ''), 'queued', l.status) AS state,
       l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued,
       l.deaths, l.claimable_at, l.size,
       l.failure_code, l.failure_message, l.failed_at, l.failure_turn, l.wait
  FROM outlast_lanes AS l
 CROSS JOIN outlast_sessions AS s ON s.sid = l.sid
 WHERE l.tenant = :tenant
   AND l.failed_at > 0
   AND l.failed_at >= :since
   AND (:code IS NULL OR l.failure_code = :code)
   AND s.over IN ('', 'failed')
   AND (:session_id IS NULL OR s.id = :session_id)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:status IS NULL OR state = :status)
   AND (:worker IS NULL OR l.worker = :worker)
   AND (:after IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: failed_lanes_of_queue
SELECT s.id, s.tenant, s.agent, l.lane,
       iif(l.queued AND (l.status = 'idle' OR l.failure_turn <> ''), 'queued', l.status) AS state,
       l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued,
       l.deaths, l.claimable_at, l.size,
       l.failure_code, l.failure_message, l.failed_at, l.failure_turn, l.wait
  FROM outlast_lanes AS l
 CROSS JOIN outlast_sessions AS s ON s.sid = l.sid
 WHERE l.queue = :queue
   AND l.queue <> ''
   AND l.failed_at > 0
   AND l.failed_at >= :since
   AND (:code IS NULL OR l.failure_code = :code)
   AND s.over IN ('', 'failed')
   AND (:session_id IS NULL OR s.id = :session_id)
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:status IS NULL OR state = :status)
   AND (:worker IS NULL OR l.worker = :worker)
   AND (:after IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: open_lanes
-- The first message of a lane without a turn is looked up only for those that are listed.
SELECT s.id, s.tenant, l.lane, l.turn,
       iif(l.turn <> '', '',
           coalesce((SELECT d.id
                       FROM outlast_deliveries AS d
                      WHERE d.key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295
                        AND coalesce(d.lane, 'main') = l.lane
                        AND d.state = 'queued'
                        AND d.kind IN ('message', 'retry')
                      ORDER BY d.key
                      LIMIT 1), ''))
  FROM outlast_sessions AS s
  JOIN outlast_lanes AS l ON l.sid = s.sid
 WHERE s.over = ''
   AND (l.turn <> '' OR l.queued)
   AND s.created_at >= :since
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:status IS NULL
        OR :status = iif(l.queued AND (l.status = 'idle' OR l.failure_turn <> ''),
                         'queued', l.status))
   AND (:wait IS NULL OR EXISTS (SELECT 1 FROM json_each(l.wait) AS w WHERE w.value = :wait))
   AND (:after IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: open_lanes_of_tenant
SELECT s.id, s.tenant, l.lane, l.turn,
       iif(l.turn <> '', '',
           coalesce((SELECT d.id
                       FROM outlast_deliveries AS d
                      WHERE d.key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295
                        AND coalesce(d.lane, 'main') = l.lane
                        AND d.state = 'queued'
                        AND d.kind IN ('message', 'retry')
                      ORDER BY d.key
                      LIMIT 1), ''))
  FROM outlast_sessions AS s
  JOIN outlast_lanes AS l ON l.sid = s.sid
 WHERE s.tenant = :tenant
   AND s.id <= coalesce(:after, '~')
   AND s.over = ''
   AND (l.turn <> '' OR l.queued)
   AND s.created_at >= :since
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:status IS NULL
        OR :status = iif(l.queued AND (l.status = 'idle' OR l.failure_turn <> ''),
                         'queued', l.status))
   AND (:wait IS NULL OR EXISTS (SELECT 1 FROM json_each(l.wait) AS w WHERE w.value = :wait))
   AND (:after IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: delivery
SELECT s.id, d.lane, d.id, d.kind, d.state, d.outcome, d.turn, d.key, d.settled_offset
  FROM outlast_deliveries AS d
  JOIN outlast_sessions AS s ON s.sid = d.key >> 32
 WHERE d.id = :delivery_id;

-- name: deliveries
SELECT s.id, d.lane, d.id, d.kind, d.state, d.outcome, d.turn, d.key, d.settled_offset
  FROM outlast_sessions AS s
  JOIN outlast_deliveries AS d ON d.key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295
 WHERE s.id = :session_id
 ORDER BY d.key;

-- name: past_failures
-- Behind a failed turn of these its lane has gone on with another message: the next delivery with a
-- turn of its own is no retry.
SELECT count(*)
  FROM (SELECT DISTINCT d.key >> 32, coalesce(d.lane, 'main'), d.turn
          FROM outlast_deliveries AS d
          JOIN outlast_sessions AS s ON s.sid = d.key >> 32
         WHERE d.failed_at IS NOT NULL
           AND d.failed_at >= :since
           AND (:code IS NULL OR d.failure_code = :code)
           AND s.over = ''
           AND (:tenant IS NULL OR s.tenant = :tenant)
           AND (:agent IS NULL OR s.agent = :agent)
           AND 'message' = (SELECT e.kind
                              FROM outlast_deliveries AS e
                             WHERE e.key > d.key AND e.key <= (s.sid << 32 | 4294967295)
                               AND coalesce(e.lane, 'main') = coalesce(d.lane, 'main')
                               AND e.kind IN ('message', 'retry')
                               AND e.turn <> d.turn
                             ORDER BY e.key
                             LIMIT 1));

-- name: request
SELECT q.id, s.id, s.tenant, s.agent, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM outlast_requests AS q
  JOIN outlast_sessions AS s ON s.sid = q.sid
 WHERE q.id = :request_id;

-- name: requests_of_session
SELECT q.id, s.id, s.tenant, s.agent, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM outlast_sessions AS s
  JOIN outlast_requests AS q ON q.sid = s.sid
 WHERE s.id = :session_id
   AND (q.state = 'open' OR NOT :open_only)
   AND q.rid > coalesce((SELECT rid FROM outlast_requests WHERE id = :after), 0)
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:kinds IS NULL OR q.kind IN (SELECT value FROM json_each(:kinds)))
 ORDER BY q.rid
 LIMIT :limit;

-- name: open_requests
SELECT q.id, s.id, s.tenant, s.agent, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM outlast_requests AS q
  JOIN outlast_sessions AS s ON s.sid = q.sid
 WHERE q.state = 'open'
   AND q.rid > coalesce((SELECT rid FROM outlast_requests WHERE id = :after), 0)
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:kinds IS NULL OR q.kind IN (SELECT value FROM json_each(:kinds)))
 ORDER BY q.rid
 LIMIT :limit;

-- name: open_requests_of_tenant
SELECT q.id, s.id, s.tenant, s.agent, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM outlast_requests AS q
  JOIN outlast_sessions AS s ON s.sid = q.sid
 WHERE q.tenant = :tenant
   AND q.state = 'open'
   AND q.rid > coalesce((SELECT rid FROM outlast_requests WHERE id = :after), 0)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:kinds IS NULL OR q.kind IN (SELECT value FROM json_each(:kinds)))
 ORDER BY q.rid
 LIMIT :limit;

-- name: requests
SELECT q.id, s.id, s.tenant, s.agent, q.lane, q.kind, q.state, q.expires_at, q.data
  FROM outlast_requests AS q
  JOIN outlast_sessions AS s ON s.sid = q.sid
 WHERE q.rid > coalesce((SELECT rid FROM outlast_requests WHERE id = :after), 0)
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:kinds IS NULL OR q.kind IN (SELECT value FROM json_each(:kinds)))
 ORDER BY q.rid
 LIMIT :limit;

-- name: find_token
SELECT s.id
  FROM outlast_tokens AS t
  JOIN outlast_sessions AS s ON s.sid = t.sid
 WHERE t.tenant = :tenant AND t.token = :token AND t.living AND s.over = '';

-- name: find_dead_token
SELECT s.id
  FROM outlast_tokens AS t
  JOIN outlast_sessions AS s ON s.sid = t.sid
 WHERE t.tenant = :tenant AND t.token = :token AND NOT t.living
 ORDER BY t.tid DESC
 LIMIT 1;

-- name: tokens
SELECT t.token, t.living
  FROM outlast_sessions AS s
  JOIN outlast_tokens AS t ON t.sid = s.sid
 WHERE s.id = :session_id
 ORDER BY t.tid;

-- name: census
-- A lane whose own status says that it is over belongs to a session that is: what has ended long
-- ago costs no look at its session, unless by failing. Another lane of such a session may not have
-- seen its end yet.
SELECT iif(l.queued AND (l.status = 'idle' OR l.failure_turn <> ''), 'queued', l.status) AS state,
       l.wait, count(*), sum(l.queued),
       min(l.ready_at) FILTER (WHERE l.worker IS NULL AND l.ready_at <= :now),
       iif(l.status = 'failed' AND NOT l.queued, l.failure_code, '') AS code
  FROM outlast_lanes AS l
  JOIN outlast_sessions AS s ON s.sid = l.sid
 WHERE l.status NOT IN ('completed', 'ended') AND s.over = ''
 GROUP BY state, l.wait, code
 ORDER BY state, l.wait, code;
