-- name: session
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token, s.parent, s.tags::text, s.lanes, NULL, outlast.now_ms()
  FROM outlast.session_list AS s
 WHERE s.id = :session_id;

-- name: sessions
-- Ids sort by the time they were made.
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token, s.parent, s.tags::text, s.some_lanes, s.lane_count,
       outlast.now_ms()
  FROM outlast.session_list AS s
 WHERE s.id > :first
   AND (:before::text IS NULL OR s.id < :before)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL OR s.status = :status)
 ORDER BY s.id DESC
 LIMIT :limit;

-- name: sessions_of_tenant
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token, s.parent, s.tags::text, s.some_lanes, s.lane_count,
       outlast.now_ms()
  FROM outlast.session_list AS s
 WHERE s.tenant = :tenant AND s.id > :first
   AND (:before::text IS NULL OR s.id < :before)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL OR s.status = :status)
 ORDER BY s.id DESC
 LIMIT :limit;

-- name: sessions_of_tag
-- From the sessions with the first of the tags; the others are looked at in each. OFFSET 0 keeps
-- this order: the planner knows nothing of how many have a tag.
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token, s.parent, s.tags::text, s.some_lanes, s.lane_count,
       outlast.now_ms()
  FROM outlast.tags AS t
 CROSS JOIN LATERAL (
           SELECT * FROM outlast.session_list AS r
            WHERE r.tenant = t.tenant AND r.sid = t.sid
           OFFSET 0
       ) AS s
 WHERE t.name = :tag_name
   AND t.value = :tag_value
   AND t.id > :first
   AND (:before::text IS NULL OR t.id < :before)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL OR s.status = :status)
   AND s.tags @> :tags::jsonb
 ORDER BY t.id DESC
 LIMIT :limit;

-- name: sessions_of_tag_of_tenant
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token, s.parent, s.tags::text, s.some_lanes, s.lane_count,
       outlast.now_ms()
  FROM outlast.tags AS t
 CROSS JOIN LATERAL (
           SELECT * FROM outlast.session_list AS r
            WHERE r.tenant = t.tenant AND r.sid = t.sid
           OFFSET 0
       ) AS s
 WHERE t.tenant = :tenant
   AND t.name = :tag_name
   AND t.value = :tag_value
   AND t.id > :first
   AND (:before::text IS NULL OR t.id < :before)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL OR s.status = :status)
   AND s.tags @> :tags::jsonb
 ORDER BY t.id DESC
 LIMIT :limit;

-- name: sessions_of_parent
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token, s.parent, s.tags::text, s.some_lanes, s.lane_count,
       outlast.now_ms()
  FROM outlast.children AS c
  JOIN outlast.session_list AS s ON s.tenant = c.tenant AND s.sid = c.sid
 WHERE c.parent = :parent
   AND (:tenant::text IS NULL OR s.tenant = :tenant)
   AND s.id > :first
   AND (:before::text IS NULL OR s.id < :before)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL OR s.status = :status)
   AND s.tags @> :tags::jsonb
 ORDER BY s.id DESC
 LIMIT :limit;

-- name: failed_sessions
-- It is planned for every call: with few lanes that have failed, by their index.
SELECT s.id, s.tenant, s.agent, s.mode, s.status, s.created_at, s.updated_at, s.last_offset,
       s.over, s.token, s.parent, s.tags::text, s.some_lanes, s.lane_count,
       outlast.now_ms()
  FROM outlast.session_list AS s
 WHERE (s.tenant, s.sid) IN (SELECT l.tenant, l.sid
                               FROM outlast.lanes AS l
                              WHERE l.failed_at > 0
                                AND l.failed_at >= :since
                                AND (:queue::text IS NULL OR l.queue = :queue AND l.queue <> '')
                                AND (:code::text IS NULL OR l.failure_code = :code))
   AND s.over IN ('', 'failed')
   AND (:tenant::text IS NULL OR s.tenant = :tenant)
   AND s.id > :first
   AND (:before::text IS NULL OR s.id < :before)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL OR s.status = :status)
   AND (:parent::text IS NULL OR s.parent = :parent)
   AND s.tags @> :tags::jsonb
 ORDER BY s.id DESC
 LIMIT :limit;

-- name: orphans
SELECT s.id
  FROM outlast.children AS c
  JOIN outlast.sessions AS s ON s.tenant = c.tenant AND s.sid = c.sid
 WHERE c.orphaned
 ORDER BY s.id
 LIMIT :limit;

-- name: delivery
SELECT s.id, d.lane, d.id, d.kind, d.state, coalesce(d.outcome, ''), coalesce(d.turn, ''),
       d.arrival, coalesce(d.settled_offset, 0)
  FROM outlast.deliveries AS d
  JOIN outlast.sessions AS s ON s.tenant = d.tenant AND s.sid = d.sid
 WHERE d.id = :delivery_id;

-- name: deliveries
SELECT s.id, d.lane, d.id, d.kind, d.state, coalesce(d.outcome, ''), coalesce(d.turn, ''),
       d.arrival, coalesce(d.settled_offset, 0)
  FROM outlast.sessions AS s
  JOIN outlast.deliveries AS d ON d.tenant = s.tenant AND d.sid = s.sid
 WHERE s.id = :session_id
 ORDER BY d.arrival;

-- name: request
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data, s.tenant, s.agent
  FROM outlast.requests AS q
  JOIN outlast.sessions AS s ON s.tenant = q.tenant AND s.sid = q.sid
 WHERE q.id = :request_id;

-- name: requests_of_session
-- The session's own requests are found first: in the order of the list, the planner would read all
-- requests of the tenant.
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data, q.tenant, s.agent
  FROM outlast.sessions AS s
 CROSS JOIN LATERAL (
           SELECT * FROM outlast.requests AS r WHERE r.tenant = s.tenant AND r.sid = s.sid OFFSET 0
       ) AS q
 WHERE s.id = :session_id
   AND (:tenant::text IS NULL OR s.tenant = :tenant)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:kinds::jsonb IS NULL OR :kinds ? q.kind)
   AND (:after::text IS NULL
        OR q.rid > coalesce((SELECT a.rid FROM outlast.requests AS a WHERE a.id = :after), 0))
   AND (NOT :open_only OR q.state = 'open')
 ORDER BY q.rid
 LIMIT :limit;

-- name: requests
-- It is planned for every call, so a filter that is not given costs nothing. LIMIT 1 says that a
-- request has one session: it is looked up for the listed requests only.
SELECT q.id, s.id, q.lane, q.kind, q.state, q.expires_at, q.data, q.tenant, s.agent
  FROM outlast.requests AS q
 CROSS JOIN LATERAL (
           SELECT r.id, r.agent
             FROM outlast.sessions AS r
            WHERE r.tenant = q.tenant AND r.sid = q.sid
            LIMIT 1
       ) AS s
 WHERE (:tenant::text IS NULL OR q.tenant = :tenant)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:kinds::jsonb IS NULL OR :kinds ? q.kind)
   AND (:after::text IS NULL
        OR q.rid > coalesce((SELECT a.rid FROM outlast.requests AS a WHERE a.id = :after), 0))
   AND (NOT :open_only OR q.state = 'open')
 ORDER BY q.rid
 LIMIT :limit;

-- name: find_token
SELECT s.id
  FROM outlast.tokens AS t
  JOIN outlast.sessions AS s ON s.tenant = t.tenant AND s.sid = t.sid
 WHERE t.tenant = :tenant AND t.token = :token AND t.living AND s.over = '';

-- name: find_last_token
-- The session that a token leads to, or led to before it died; the living and the dead have an index
-- each.
SELECT s.id
  FROM (SELECT t.tenant, t.sid, t.living
          FROM outlast.tokens AS t
         WHERE t.tenant = :tenant AND t.token = :token AND t.living
         UNION ALL
        (SELECT t.tenant, t.sid, t.living
           FROM outlast.tokens AS t
          WHERE t.tenant = :tenant AND t.token = :token AND NOT t.living
          ORDER BY t.tid DESC
          LIMIT 1)) AS t
  JOIN outlast.sessions AS s ON s.tenant = t.tenant AND s.sid = t.sid
 ORDER BY t.living DESC
 LIMIT 1;

-- name: tokens
SELECT t.token, t.living
  FROM outlast.sessions AS s
  JOIN outlast.tokens AS t ON t.tenant = s.tenant AND t.sid = s.sid
 WHERE s.id = :session_id
 ORDER BY t.tid;

-- name: lanes
SELECT s.id, s.tenant, s.agent, l.lane,
       CASE WHEN l.queued > 0 AND (l.status = 'idle' OR l.failure_turn <> '')
            THEN 'queued' ELSE l.status END,
       l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued,
       l.deaths, l.claimable_at, l.size,
       l.failure_code, l.failure_message, l.failed_at, l.failure_turn, l.wait::text
  FROM outlast.sessions AS s
  JOIN outlast.lanes AS l ON l.tenant = s.tenant AND l.sid = s.sid
 WHERE (:session_id::text IS NULL OR s.id = :session_id)
   AND (:tenant::text IS NULL OR s.tenant = :tenant AND s.id <> '')
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL
        OR :status = CASE WHEN l.queued > 0 AND (l.status = 'idle' OR l.failure_turn <> '')
                          THEN 'queued' ELSE l.status END)
   AND (:worker::text IS NULL OR l.worker = :worker)
   AND (:after::text IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: past_failures
-- Behind a failed turn of these its lane has gone on with another message: the next delivery with a
-- turn of its own is no retry.
SELECT count(*)
  FROM (SELECT DISTINCT d.tenant, d.sid, d.lane, d.turn
          FROM outlast.deliveries AS d
          JOIN outlast.sessions AS s ON s.tenant = d.tenant AND s.sid = d.sid
         WHERE d.failed_at IS NOT NULL
           AND d.failed_at >= :since
           AND (:code::text IS NULL OR d.failure_code = :code)
           AND s.over = ''
           AND (:tenant::text IS NULL OR s.tenant = :tenant)
           AND (:agent::text IS NULL OR s.agent = :agent)
           AND 'message' = (SELECT e.kind
                              FROM outlast.deliveries AS e
                             WHERE e.tenant = d.tenant AND e.sid = d.sid AND e.arrival > d.arrival
                               AND e.lane = d.lane
                               AND e.kind IN ('message', 'retry')
                               AND e.turn <> d.turn
                             ORDER BY e.arrival
                             LIMIT 1)) AS past;

-- name: failed_lanes
SELECT s.id, s.tenant, s.agent, l.lane,
       CASE WHEN l.queued > 0 AND (l.status = 'idle' OR l.failure_turn <> '')
            THEN 'queued' ELSE l.status END,
       l.turn, coalesce(l.worker, ''), l.fence, l.ready_at, l.queued,
       l.deaths, l.claimable_at, l.size,
       l.failure_code, l.failure_message, l.failed_at, l.failure_turn, l.wait::text
  FROM outlast.lanes AS l
  JOIN outlast.sessions AS s ON s.tenant = l.tenant AND s.sid = l.sid
 WHERE l.failed_at > 0
   AND l.failed_at >= :since
   AND (:queue::text IS NULL OR l.queue = :queue AND l.queue <> '')
   AND (:code::text IS NULL OR l.failure_code = :code)
   AND s.over IN ('', 'failed')
   AND (:session_id::text IS NULL OR s.id = :session_id)
   AND (:tenant::text IS NULL OR s.tenant = :tenant)
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL
        OR :status = CASE WHEN l.queued > 0 AND (l.status = 'idle' OR l.failure_turn <> '')
                          THEN 'queued' ELSE l.status END)
   AND (:worker::text IS NULL OR l.worker = :worker)
   AND (:after::text IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: open_lanes
-- The first message of a lane without a turn is looked up only for those that are listed.
SELECT s.id, s.tenant, l.lane, l.turn,
       CASE WHEN l.turn <> '' THEN ''
            ELSE coalesce((SELECT d.id
                             FROM outlast.deliveries AS d
                            WHERE d.tenant = s.tenant AND d.sid = s.sid
                              AND d.lane = l.lane
                              AND d.state = 'queued'
                              AND d.kind IN ('message', 'retry')
                            ORDER BY d.arrival
                            LIMIT 1), '') END
  FROM outlast.sessions AS s
  JOIN outlast.lanes AS l ON l.tenant = s.tenant AND l.sid = s.sid
 WHERE s.over = ''
   AND (l.turn <> '' OR l.queued > 0)
   AND s.created_at >= :since
   AND (:tenant::text IS NULL OR s.tenant = :tenant AND s.id <> '')
   AND (:agent::text IS NULL OR s.agent = :agent)
   AND (:status::text IS NULL
        OR :status = CASE WHEN l.queued > 0 AND (l.status = 'idle' OR l.failure_turn <> '')
                          THEN 'queued' ELSE l.status END)
   AND (:wait::text IS NULL OR l.wait @> to_jsonb(:wait::text))
   AND (:after::text IS NULL OR s.id < :after OR s.id = :after AND l.lane > :after_lane)
 ORDER BY s.id DESC, l.lane
 LIMIT :limit;

-- name: permits
-- Waiting calls come in the order of `waiting_calls`, then those that were skipped.
SELECT p.name, s.id, p.lane, p.call_id, p.held, CASE WHEN p.held THEN 0 ELSE p.place - 1 END
  FROM (SELECT o.*,
               row_number() OVER (PARTITION BY o.name, o.held
                                      ORDER BY o.absent, o.share, o.tenant <= m.last_tenant,
                                               o.tenant) AS place
          FROM (SELECT q.*,
                       count(*) FILTER (WHERE q.held) OVER (PARTITION BY q.name, q.tenant)
                       + row_number() OVER (PARTITION BY q.name, q.tenant, q.held, q.absent
                                                ORDER BY q.rank, q.pid) AS share
                  FROM outlast.permits AS q
                 WHERE :name::text IS NULL OR q.name = :name) AS o
          JOIN outlast.limits AS m ON m.name = o.name) AS p
  JOIN outlast.sessions AS s ON s.tenant = p.tenant AND s.sid = p.sid
 WHERE :session_id::text IS NULL OR s.id = :session_id
 ORDER BY p.name, p.held DESC, CASE WHEN p.held THEN p.pid ELSE p.place END
 LIMIT :limit;

-- name: lines
SELECT p.name, count(*) FILTER (WHERE p.held), count(*) FILTER (WHERE NOT p.held),
       min(p.asked_at) FILTER (WHERE NOT p.held)
  FROM outlast.permits AS p
 WHERE p.name >= :start COLLATE "C" AND (:behind = '' OR p.name < :behind COLLATE "C")
 GROUP BY p.name
 ORDER BY p.name;

-- name: census
-- The lanes of sessions that are not over, by status and wait: their number, how many messages are
-- queued in them, and since when the longest ready one has had no owner.
SELECT CASE WHEN l.queued > 0 AND (l.status = 'idle' OR l.failure_turn <> '')
            THEN 'queued' ELSE l.status END AS doing,
       l.wait::text, count(*), sum(l.queued)::bigint,
       min(l.ready_at) FILTER (WHERE l.worker IS NULL),
       CASE WHEN l.status = 'failed' AND l.queued = 0 THEN l.failure_code ELSE '' END AS code
  FROM outlast.lanes AS l
  JOIN outlast.sessions AS s ON s.tenant = l.tenant AND s.sid = l.sid
 WHERE s.over = ''
 GROUP BY doing, l.wait, code
 ORDER BY doing, l.wait, code;
