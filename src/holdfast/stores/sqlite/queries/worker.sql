-- name: enlist
INSERT OR REPLACE INTO holdfast_workers
    (worker, machine, host, pid, started_at, version, lease, lease_until)
VALUES (:worker, :machine, :host, :pid, :started_at, :version, :lease, :now + :lease);

-- name: lease_until
SELECT lease_until FROM holdfast_workers WHERE worker = :worker;

-- name: renew
-- Changes nothing for a worker that was declared dead: its row is gone.
UPDATE holdfast_workers SET lease_until = :now + lease WHERE worker = :worker;

-- name: bury
-- Who deletes the row has recorded the death; all others find nothing.
DELETE FROM holdfast_workers WHERE worker = :worker RETURNING 1;

-- name: free_lanes
-- They can be claimed at once, and the dead worker's commits are refused from now on.
UPDATE holdfast_lanes SET worker = NULL WHERE worker = :worker;

-- name: living_workers
SELECT worker, host, pid, started_at, lease_until, version
  FROM holdfast_workers
 WHERE lease_until > :now
 ORDER BY started_at, worker;

-- name: workers_on_machine
SELECT worker FROM holdfast_workers WHERE machine = :machine;

-- name: long_gone_workers
SELECT worker FROM holdfast_workers WHERE lease_until < :before;
