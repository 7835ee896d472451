-- name: find_backend
-- Who answers. Where that is not who let us in, a pooler stands between.
SELECT pg_backend_pid();

-- name: next_sign
-- The number of the advisory lock of a worker that is about to be registered.
SELECT nextval('holdfast.signs')::integer;

-- name: show_sign
-- Shared, so that a worker that has lost its connection can show it again on another before
-- the server has noticed that the first is gone.
SELECT pg_advisory_lock_shared(:class, :sign);

-- name: hide_sign
SELECT pg_advisory_unlock_shared(:class, :sign);

-- name: enlist
INSERT INTO holdfast.workers
       (worker, sign, host, pid, started_at, version, concurrency, agents, lanes, at_once, tally,
        lease, lease_until)
VALUES (:worker, :sign, :host, :pid, :started_at, :version, :concurrency, :agents, :lanes, :at_once,
        :tally, :lease, holdfast.now_ms() + :lease)
    ON CONFLICT (worker) DO UPDATE
   SET sign = excluded.sign,
       host = excluded.host,
       pid = excluded.pid,
       started_at = excluded.started_at,
       version = excluded.version,
       concurrency = excluded.concurrency,
       agents = excluded.agents,
       lanes = excluded.lanes,
       at_once = excluded.at_once,
       tally = excluded.tally,
       draining = false,
       lease = excluded.lease,
       lease_until = excluded.lease_until;

-- name: namesake
-- Whether a worker of this name shows its sign of life.
SELECT 1
  FROM holdfast.workers AS w
  JOIN pg_locks AS k
    ON k.locktype = 'advisory'
   AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND k.classid::bigint = :class
   AND k.objid::bigint = w.sign
   AND k.objsubid = 2
   AND k.granted
 WHERE w.worker = :worker
 LIMIT 1;

-- name: renew
-- Changes nothing for a worker that was declared dead: its row is gone. A lease that ran out goes
-- on: a lane that somebody took meanwhile has another fence. One that ran out while the server was
-- away was nobody's to take.
UPDATE holdfast.workers AS w
   SET lease_until = holdfast.now_ms() + w.lease,
       tally = coalesce(nullif(:tally, ''), w.tally)
  FROM (SELECT b.lease_until FROM holdfast.workers AS b WHERE b.worker = :worker FOR UPDATE) AS was
 WHERE w.worker = :worker
RETURNING true, w.draining,
          was.lease_until <= holdfast.now_ms() AND holdfast.uptime_ms() >= w.lease;

-- name: drain
UPDATE holdfast.workers
   SET draining = true
 WHERE worker = :worker AND lease_until > holdfast.now_ms()
RETURNING 1;

-- name: bury
SELECT holdfast.bury(:worker);

-- name: living_workers
-- A lease is renewed by its full length, so its end says when the worker was last heard of.
SELECT w.worker, w.host, w.pid, w.started_at, w.version, w.concurrency, w.agents::text,
       w.lanes::text, w.at_once::text, w.tally, w.lease_until - w.lease, w.lease_until,
       (SELECT count(*) FROM holdfast.lanes AS l WHERE l.worker = w.worker), w.draining
  FROM holdfast.workers AS w
 WHERE w.lease_until > holdfast.now_ms()
 ORDER BY w.started_at, w.worker;

-- name: missing_workers
-- Those that should show a sign of life and do not, once the server has been up for so long
-- that all who live have had the time to show theirs again; and those not heard of for a day.
SELECT w.worker, w.lease_until < holdfast.now_ms() - :long_gone
  FROM holdfast.workers AS w
 WHERE w.lease_until < holdfast.now_ms() - :long_gone
    OR (w.sign IS NOT NULL
        AND holdfast.uptime_ms() >= w.lease
        AND w.sign NOT IN (SELECT k.objid::bigint
                             FROM pg_locks AS k
                            WHERE k.locktype = 'advisory'
                              AND k.database = (SELECT d.oid
                                                  FROM pg_database AS d
                                                 WHERE d.datname = current_database())
                              AND k.classid::bigint = :class
                              AND k.objsubid = 2
                              AND k.granted));
