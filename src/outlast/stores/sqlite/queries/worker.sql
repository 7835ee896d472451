-- name: enlist
INSERT OR REPLACE INTO outlast_workers
    (worker, machine, host, pid, started_at, version, lease, lease_until,
     concurrency, agents, lanes, at_once, counters, arrived_since)
VALUES (:worker, :machine, :host, :pid, :started_at, :version, :lease, :now + :lease,
        :concurrency, :agents, :lanes, :at_once, :counters, :arrived_since);

-- name: arrived_since
SELECT arrived_since FROM outlast_workers WHERE worker = :worker;

-- name: find_lease
SELECT draining, lease_until FROM outlast_workers WHERE worker = :worker;

-- name: renew
-- Changes nothing for a worker that was declared dead: its row is gone. A lease that ran out goes
-- on: a lane that another worker took meanwhile has another fence.
UPDATE outlast_workers
   SET lease_until = :now + lease, counters = iif(:counters = '', counters, :counters)
 WHERE worker = :worker;

-- name: bury
-- The process that deletes the row has recorded the death; all others find nothing.
DELETE FROM outlast_workers WHERE worker = :worker RETURNING 1;

-- name: free_lanes
-- The dead worker's commits are refused from now on. Its lanes can be claimed at once, but for
-- those that have lost another owner before: see FIRST_PAUSE in store/work.py.
UPDATE outlast_lanes
   SET worker = NULL,
       evidence = :evidence,
       deaths = deaths + 1,
       claimable_at = iif(deaths = 0, 0,
                          :now + min(:longest_pause, :first_pause << min(deaths - 1, 20)))
 WHERE worker = :worker;

-- name: living_workers
-- A lease is renewed by its full length, so its end says when the worker was last heard of.
SELECT w.worker, w.host, w.pid, w.started_at, w.version, w.concurrency, w.agents, w.lanes,
       w.at_once, w.counters, w.lease_until - w.lease, w.lease_until,
       (SELECT count(*) FROM outlast_lanes AS l WHERE l.worker = w.worker),
       w.draining, w.arrived_since
  FROM outlast_workers AS w
 WHERE w.lease_until > :now
 ORDER BY w.started_at, w.worker;

-- name: drain
UPDATE outlast_workers
   SET draining = 1
 WHERE worker = :worker AND lease_until > :now
RETURNING 1;

-- name: workers_on_machine
SELECT worker FROM outlast_workers WHERE machine = :machine;

-- name: long_gone_workers
SELECT worker FROM outlast_workers WHERE lease_until < :before;
