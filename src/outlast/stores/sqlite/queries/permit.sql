-- name: owned_lane
SELECT l.lid
  FROM outlast_sessions AS s
  JOIN outlast_lanes AS l ON l.sid = s.sid AND l.lane = :lane
 WHERE s.id = :session_id AND l.worker = :worker AND l.fence = :fence;

-- name: ask_for_permit
-- A call that asks for the first time is the last of its tenant; one that asks is in line.
INSERT INTO outlast_permits (name, lid, call_id, most, held, asked_at, rank)
VALUES (:name, :lid, :call_id, :most, 0, :now, :now - :ahead)
ON CONFLICT (name, lid, call_id) DO UPDATE
   SET most = excluded.most, expected_at = NULL, absent = 0
RETURNING pid, held;

-- name: places
-- How many calls run under a limit, how many are in line, and up to when starts are paid for.
SELECT (SELECT count(*) FROM outlast_permits WHERE name = :name AND held = 1),
       (SELECT count(*) FROM outlast_permits WHERE name = :name AND held = 0 AND absent = 0),
       coalesce((SELECT paid_until FROM outlast_limits WHERE name = :name), 0);

-- name: grant_permit
UPDATE outlast_permits SET held = 1 WHERE pid = :pid;

-- name: drop_permit
DELETE FROM outlast_permits WHERE pid = :pid;

-- name: note_turn
-- Whose call began last matters only where others wait.
INSERT INTO outlast_limits (name, paid_until, last_tenant)
SELECT :name, 0, own.tenant
  FROM outlast_lanes AS own
 WHERE own.lid = :lid
   AND EXISTS (SELECT 1
                 FROM outlast_permits AS p
                 JOIN outlast_lanes AS l ON l.lid = p.lid
                WHERE p.name = :name AND p.held = 0 AND l.tenant <> own.tenant)
ON CONFLICT (name) DO UPDATE SET last_tenant = excluded.last_tenant;

-- name: pay_rate
INSERT INTO outlast_limits (name, paid_until) VALUES (:name, :paid_until)
ON CONFLICT (name) DO UPDATE SET paid_until = excluded.paid_until;

-- name: drop_stale_permits
-- The permits of a call under limits that it does not ask for any more.
DELETE FROM outlast_permits
 WHERE lid = :lid AND call_id = :call_id AND name NOT IN (SELECT value FROM json_each(:names))
RETURNING name;

-- name: free_permits
DELETE FROM outlast_permits
 WHERE lid = :lid AND call_id IN (SELECT value FROM json_each(:calls))
RETURNING name;

-- name: in_line
-- The calls that have a place under a limit now, with their lanes and sessions; and how many are
-- ahead of the call `pid`. Tenants take turns: first comes whose tenant would have the fewest
-- permits with it, and of those whose names come after the one that began last.
WITH
    holding (tenant, calls) AS (
        SELECT l.tenant, count(*)
          FROM outlast_permits AS p
          JOIN outlast_lanes AS l ON l.lid = p.lid
         WHERE p.name = :name AND p.held = 1
         GROUP BY l.tenant
    ),
    waiting (pid, lid, sid, tenant, most, share) AS (
        SELECT p.pid, p.lid, l.sid, l.tenant, p.most,
               coalesce((SELECT calls FROM holding WHERE holding.tenant = l.tenant), 0)
               + row_number() OVER (PARTITION BY l.tenant ORDER BY p.rank, p.pid)
          FROM outlast_permits AS p
          JOIN outlast_lanes AS l ON l.lid = p.lid
         WHERE p.name = :name AND p.held = 0 AND p.absent = 0
    ),
    latest (tenant) AS (SELECT last_tenant FROM outlast_limits WHERE name = :name),
    placed (pid, lid, sid, most, place) AS (
        SELECT pid, lid, sid, most,
               row_number() OVER (ORDER BY share, tenant <= coalesce((SELECT tenant FROM latest), ''),
                                           tenant)
          FROM waiting
    )
SELECT w.pid, w.lid, s.id, w.place - 1
  FROM placed AS w
  JOIN outlast_sessions AS s ON s.sid = w.sid
 WHERE w.pid = :pid
    OR (w.most > 0 AND w.place + (SELECT coalesce(sum(calls), 0) FROM holding) <= w.most);

-- name: resize_limit
UPDATE outlast_permits SET most = :most WHERE name = :name AND held = 0;

-- name: permit_holders
SELECT DISTINCT p.lid, s.id
  FROM outlast_permits AS p
  JOIN outlast_lanes AS l ON l.lid = p.lid
  JOIN outlast_sessions AS s ON s.sid = l.sid
 WHERE p.name = :name AND p.held = 1;

-- name: expect_permit
-- A call has a place, or was told a time to ask again.
UPDATE outlast_permits SET expected_at = :at WHERE pid = :pid AND expected_at IS NULL;

-- name: overdue_permits
-- Calls that have not come for their places; and in lines, under names from `line` up to `behind`,
-- those that hold a permit in a lane that nobody takes.
SELECT p.pid, p.name, p.lid, s.id
  FROM (SELECT pid, name, lid, expected_at FROM outlast_permits WHERE expected_at < :before
        UNION ALL
        SELECT h.pid, h.name, h.lid, l.ready_at
          FROM outlast_permits AS h
          JOIN outlast_lanes AS l ON l.lid = h.lid
         WHERE h.name >= :line AND h.name < :behind AND h.held = 1
           AND l.worker IS NULL AND l.ready_at < :before) AS p
  JOIN outlast_lanes AS l ON l.lid = p.lid
  JOIN outlast_sessions AS s ON s.sid = l.sid
 ORDER BY p.expected_at
 LIMIT 100;

-- name: skip_permit
UPDATE outlast_permits SET absent = 1, held = 0, expected_at = NULL WHERE pid = :pid;

-- name: wake_lane
UPDATE outlast_lanes SET ready_at = min(coalesce(ready_at, :now), :now) WHERE lid = :lid;

-- name: waited_for
SELECT pid, name, absent
  FROM outlast_permits
 WHERE lid = :lid AND held = 0 AND call_id NOT IN (SELECT value FROM json_each(:frees));

-- name: permits
-- In line tenants take turns, as `in_line` has it; behind it are the calls that were passed by.
SELECT p.name, s.id, p.lane, p.call_id, p.held, CASE p.held WHEN 1 THEN 0 ELSE p.place - 1 END
  FROM (SELECT o.*,
               row_number() OVER (PARTITION BY o.name, o.held
                                      ORDER BY o.absent, o.share,
                                               o.tenant <= coalesce(r.last_tenant, ''),
                                               o.tenant) AS place
          FROM (SELECT q.*, l.lane, l.sid, l.tenant,
                       sum(q.held) OVER (PARTITION BY q.name, l.tenant)
                       + row_number() OVER (PARTITION BY q.name, l.tenant, q.held, q.absent
                                                ORDER BY q.rank, q.pid) AS share
                  FROM outlast_permits AS q
                  JOIN outlast_lanes AS l ON l.lid = q.lid
                 WHERE :name IS NULL OR q.name = :name) AS o
          LEFT JOIN outlast_limits AS r ON r.name = o.name) AS p
  JOIN outlast_sessions AS s ON s.sid = p.sid
 WHERE :session_id IS NULL OR s.id = :session_id
 ORDER BY p.name, p.held DESC, CASE p.held WHEN 1 THEN p.pid ELSE p.place END
 LIMIT :limit;

-- name: lines
SELECT name, sum(held), sum(NOT held), min(CASE held WHEN 0 THEN asked_at END)
  FROM outlast_permits
 WHERE name >= :start AND (:behind = '' OR name < :behind)
 GROUP BY name
 ORDER BY name;
