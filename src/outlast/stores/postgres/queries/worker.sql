-- name: find_backend
-- The process that answers. If it is not the one that accepted the connection, there is a pooler.
SELECT pg_backend_pid();

-- name: next_sign
-- The number of the advisory lock of a worker that is about to be registered.
SELECT nextval('outlast.signs')::integer;

-- name: show_sign
-- Shared, so that a worker that has lost its connection can show it again on another before
-- the server has noticed that the first is gone.
SELECT pg_advisory_lock_shared(:class, :sign);

-- name: hide_sign
SELECT pg_advisory_unlock_shared(:class, :sign);

-- name: enlist
INSERT INTO outlast.workers
       (worker, sign, host, pid, started_at, version, concurrency, agents, lanes, at_once, counters,
        lease, lease_until)
VALUES (:worker, :sign, :host, :pid, :started_at, :version, :concurrency, :agents, :lanes, :at_once,
        :counters, :lease, outlast.now_ms() + :lease)
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
       counters = excluded.counters,
       draining = false,
       lease = excluded.lease,
       lease_until = excluded.lease_until;

-- name: find_living_worker
-- Whether a worker of this name shows its sign of life.
SELECT 1
  FROM outlast.workers AS w
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
-- Changes nothing for a worker that was declared dead: its row is gone. A lease that ran out goes on:
-- a lane that was claimed meanwhile has another fence. The third column says whether it ran out; one
-- that ran out while the server was away did not, as no other worker could claim its lanes.
UPDATE outlast.workers AS w
   SET lease_until = outlast.now_ms() + w.lease,
       counters = coalesce(nullif(:counters, ''), w.counters)
  FROM (SELECT b.lease_until FROM outlast.workers AS b WHERE b.worker = :worker FOR UPDATE) AS was
 WHERE w.worker = :worker
RETURNING true, w.draining,
          was.lease_until <= outlast.now_ms() AND outlast.uptime_ms() >= w.lease;

-- name: drain
UPDATE outlast.workers
   SET draining = true
 WHERE worker = :worker AND lease_until > outlast.now_ms()
RETURNING 1;

-- name: remove_worker
SELECT outlast.remove_worker(:worker);

-- name: living_workers
-- A lease is renewed by its full length, so its end says when the worker was last heard of.
SELECT w.worker, w.host, w.pid, w.started_at, w.version, w.concurrency, w.agents::text,
       w.lanes::text, w.at_once::text, w.counters, w.lease_until - w.lease, w.lease_until,
       (SELECT count(*) FROM outlast.lanes AS l WHERE l.worker = w.worker), w.draining
  FROM outlast.workers AS w
 WHERE w.lease_until > outlast.now_ms()
 ORDER BY w.started_at, w.worker;

-- name: missing_workers
-- Workers that should show a sign of life and do not, once the server has been up for so long that
-- every living worker had the time to show it again; and workers whose lease ended a day ago.
SELECT w.worker, w.lease_until < outlast.now_ms() - :long_gone
  FROM outlast.workers AS w
 WHERE w.lease_until < outlast.now_ms() - :long_gone
    OR (w.sign IS NOT NULL
        AND outlast.uptime_ms() >= w.lease
        AND w.sign NOT IN (SELECT k.objid::bigint
                             FROM pg_locks AS k
                            WHERE k.locktype = 'advisory'
                              AND k.database = (SELECT d.oid
                                                  FROM pg_database AS d
                                                 WHERE d.datname = current_database())
                              AND k.classid::bigint = :class
                              AND k.objsubid = 2
                              AND k.granted));
