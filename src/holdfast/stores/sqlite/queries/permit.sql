-- name: owned_lane
SELECT l.lid
  FROM holdfast_sessions AS s
  JOIN holdfast_lanes AS l ON l.sid = s.sid AND l.lane = :lane
 WHERE s.id = :session_id AND l.worker = :worker AND l.fence = :fence;

-- name: ask_for_permit
-- A call that asks for the first time goes to the end of the queue.
INSERT INTO holdfast_permits (name, lid, call_id, most, held)
VALUES (:name, :lid, :call_id, :most, 0)
ON CONFLICT (name, lid, call_id) DO UPDATE SET most = excluded.most
RETURNING pid, held;

-- name: places
-- How many calls run under a limit, how many wait before this one, and up to when starts
-- are paid for.
SELECT (SELECT count(*) FROM holdfast_permits WHERE name = :name AND held = 1),
       (SELECT count(*) FROM holdfast_permits WHERE name = :name AND held = 0 AND pid < :pid),
       coalesce((SELECT paid_until FROM holdfast_rates WHERE name = :name), 0);

-- name: grant_permit
UPDATE holdfast_permits SET held = 1 WHERE pid = :pid;

-- name: drop_permit
DELETE FROM holdfast_permits WHERE pid = :pid;

-- name: pay_rate
INSERT INTO holdfast_rates (name, paid_until) VALUES (:name, :paid_until)
ON CONFLICT (name) DO UPDATE SET paid_until = excluded.paid_until;

-- name: free_permits
DELETE FROM holdfast_permits
 WHERE lid = :lid AND call_id IN (SELECT value FROM json_each(:calls))
RETURNING name;

-- name: with_a_place
-- The lanes whose calls have a place under a limit now, and their sessions.
SELECT DISTINCT l.lid, s.id
  FROM (SELECT lid, most, row_number() OVER (ORDER BY pid) AS place
          FROM holdfast_permits
         WHERE name = :name AND held = 0 AND most > 0) AS w
  JOIN holdfast_lanes AS l ON l.lid = w.lid
  JOIN holdfast_sessions AS s ON s.sid = l.sid
 WHERE w.place + (SELECT count(*) FROM holdfast_permits WHERE name = :name AND held = 1) <= w.most;

-- name: wake_lane
UPDATE holdfast_lanes SET ready_at = min(coalesce(ready_at, :now), :now) WHERE lid = :lid;

-- name: limits_waited_for
SELECT DISTINCT name FROM holdfast_permits WHERE lid = :lid AND held = 0;

-- name: permits
SELECT p.name, s.id, l.lane, p.call_id, p.held,
       CASE p.held WHEN 0 THEN
           (SELECT count(*) FROM holdfast_permits AS o
             WHERE o.name = p.name AND o.held = 0 AND o.pid < p.pid) ELSE 0 END
  FROM holdfast_permits AS p
  JOIN holdfast_lanes AS l ON l.lid = p.lid
  JOIN holdfast_sessions AS s ON s.sid = l.sid
 WHERE (:session_id IS NULL OR s.id = :session_id)
   AND (:name IS NULL OR p.name = :name)
 ORDER BY p.name, p.held DESC, p.pid
 LIMIT :limit;
