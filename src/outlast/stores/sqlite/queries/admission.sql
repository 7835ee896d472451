-- name: receipt_by_delivery
-- A dispatch id that Outlast made is the delivery's id: this alone makes it idempotent.
-- Of a session that was erased the delivery is there, and the session is not.
SELECT s.id, d.lane, d.id, d.key, d.position, d.fingerprint
  FROM outlast_deliveries AS d
  LEFT JOIN outlast_sessions AS s ON s.sid = d.key >> 32
 WHERE d.id = :delivery_id;

-- name: receipt_by_dispatch
SELECT s.id, d.lane, d.id, d.key, d.position, d.fingerprint
  FROM outlast_dispatches AS p
  JOIN outlast_deliveries AS d ON d.key = p.delivery
  LEFT JOIN outlast_sessions AS s ON s.sid = d.key >> 32
 WHERE p.tenant = :tenant AND p.name = :name;

-- name: target
-- The session, and the lane in it if there is one of that name.
SELECT s.sid, s.tenant, s.agent, s.queue, s.over, l.lid, l.turn
  FROM outlast_sessions AS s
  LEFT JOIN outlast_lanes AS l ON l.sid = s.sid AND l.lane = :lane
 WHERE s.id = :session_id;

-- name: add_session
-- Deliveries outlive a session that is erased, so their keys tell which numbers were given:
-- what still points at an erased session must not come to point at another one.
INSERT INTO outlast_sessions (sid, id, tenant, agent, mode, queue, created_at, parent)
VALUES (1 + max(coalesce((SELECT max(sid) FROM outlast_sessions), 0),
                coalesce((SELECT max(key) FROM outlast_deliveries) >> 32, 0)),
        :session_id, :tenant, :agent, :mode, :queue, :at, :parent)
RETURNING sid;

-- name: add_tags
INSERT INTO outlast_tags (tenant, name, value, id, sid)
SELECT :tenant, key, value, :session_id, :sid FROM json_each(:tags);

-- name: add_outbox_cursors
-- JSON rows of name, address, secret and the types of events.
INSERT INTO outlast_outbox_cursors (sid, name, url, secret, events, position)
SELECT :sid, value ->> 0, value ->> 1, value ->> 2, value ->> 3, :position
  FROM json_each(:cursors)
 WHERE true
    ON CONFLICT DO NOTHING;

-- name: add_lane
INSERT INTO outlast_lanes (sid, lane, agent, tenant, queue, last_arrival, version, status)
VALUES (:sid, :lane, :agent, :tenant, :queue, 0, :version, 'idle')
RETURNING lid;

-- name: receive
-- An arrival makes its lane ready at once. An owned lane too: were its owner to die
-- before it saw the arrival, no worker would come for it.
UPDATE outlast_lanes
   SET last_arrival = :offset,
       ready_at = min(coalesce(ready_at, :now), :now),
       queued = queued + :waits,
       size = size + :size,
       version = max(version, :version)
 WHERE lid = :lid
RETURNING queued - :waits;

-- name: add_delivery
INSERT INTO outlast_deliveries (key, id, lane, kind, position, state, fingerprint)
VALUES (:key, :delivery_id, :lane, :kind, :position, 'queued', :fingerprint);

-- name: add_dispatch
INSERT INTO outlast_dispatches (tenant, name, delivery) VALUES (:tenant, :name, :key);

-- name: room_in_session
SELECT coalesce(sum(queued), 0), coalesce(sum(size), 0) FROM outlast_lanes WHERE sid = :sid;

-- name: queued_in_tenant
SELECT coalesce(sum(queued), 0) FROM outlast_lanes WHERE tenant = :tenant AND queued > 0;

-- name: request_to_answer
SELECT state, expires_at FROM outlast_requests WHERE id = :request_id AND sid = :sid;

-- name: answer_request
UPDATE outlast_requests
   SET state = 'answered', answered_offset = :offset
 WHERE id = :request_id;
