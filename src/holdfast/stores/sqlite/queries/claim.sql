-- name: claim
-- One statement, so of two workers that ask at once only one sees a lane as free.
-- `owners` visits each worker that owns a lane once, however many it owns.
-- `forgotten` are lanes that this worker was given and does not know of: the answer to
-- an earlier claim was lost. `ready_at` stays: should this worker die before its first
-- commit, the lane is as ready as it was.
WITH RECURSIVE
    owners (name) AS (
        SELECT min(worker) FROM holdfast_lanes WHERE worker IS NOT NULL
        UNION ALL
        SELECT (SELECT min(worker) FROM holdfast_lanes WHERE worker > owners.name)
          FROM owners
         WHERE owners.name IS NOT NULL
    ),
    gone (name) AS (
        SELECT name
          FROM owners
         WHERE name <> :worker
           AND NOT EXISTS (SELECT 1
                             FROM holdfast_workers AS w
                            WHERE w.worker = owners.name AND w.lease_until > :now)
    ),
    forgotten (lid, ready_at) AS (
        SELECT l.lid, coalesce(l.ready_at, 0)
          FROM holdfast_lanes AS l
          JOIN holdfast_sessions AS s ON s.sid = l.sid
         WHERE l.worker = :worker
           AND s.id || ' ' || l.lane NOT IN (SELECT value FROM json_each(:held))
           AND (:agents IS NULL OR l.agent IN (SELECT value FROM json_each(:agents)))
           AND l.version <= :version
         LIMIT :limit
    ),
    free (lid, ready_at) AS (
        SELECT lid, ready_at
          FROM holdfast_lanes
         WHERE worker IS NULL
           AND ready_at IS NOT NULL
           AND ready_at <= :now
           AND (:agents IS NULL OR agent IN (SELECT value FROM json_each(:agents)))
           AND version <= :version
         ORDER BY ready_at, lid
         LIMIT :limit
    ),
    orphaned (lid, ready_at) AS (
        SELECT l.lid, l.ready_at
          FROM gone
          JOIN holdfast_lanes AS l ON l.worker = gone.name
         WHERE l.ready_at <= :now
           AND (:agents IS NULL OR l.agent IN (SELECT value FROM json_each(:agents)))
           AND l.version <= :version
         ORDER BY l.ready_at, l.lid
         LIMIT :limit
    ),
    chosen (lid) AS (
        SELECT lid
          FROM (SELECT * FROM forgotten UNION ALL SELECT * FROM free UNION ALL SELECT * FROM orphaned)
         ORDER BY ready_at, lid
         LIMIT :limit
    )
UPDATE holdfast_lanes
   SET worker = :worker, fence = fence + 1
 WHERE lid IN (SELECT lid FROM chosen)
RETURNING (SELECT id FROM holdfast_sessions AS s WHERE s.sid = holdfast_lanes.sid),
          (SELECT tenant FROM holdfast_sessions AS s WHERE s.sid = holdfast_lanes.sid),
          lane, agent, fence, number, last_arrival, coalesce(ready_at, 0), lid;

-- name: next_ready_at
SELECT min(ready_at)
  FROM holdfast_lanes
 WHERE worker IS NULL AND ready_at IS NOT NULL AND ready_at > :after;
