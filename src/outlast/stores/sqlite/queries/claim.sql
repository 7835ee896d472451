-- name: claim
-- One statement, so of two workers that ask at once only one sees a lane as free.
-- `owners` visits each worker that owns a lane once, however many it has. Usually all that is
-- ready fits into `first_ones`. Only behind a backlog does `tenants` visit each that has a timer,
-- so that one with ten thousand ready lanes costs no more than others. `at_work` counts lanes, and grows with what is given:
-- the place of a lane is how many its tenant would have at work with it. `forgotten` are lanes
-- that this worker was given and does not know of: the answer to an earlier claim was lost.
-- `ready_at` stays: should this worker die before its first commit, the lane is as ready as
-- it was. With `arrived_since`, lanes whose last arrival is older are not given. `others` are the
-- agents of which another deployment is the current one, NULL where there are no deployments; those
-- in `served` have workers that claim.
WITH RECURSIVE
    owners (name) AS (
        SELECT min(worker) FROM outlast_lanes WHERE worker IS NOT NULL
        UNION ALL
        SELECT (SELECT min(worker) FROM outlast_lanes WHERE worker > owners.name)
          FROM owners
         WHERE owners.name IS NOT NULL
    ),
    gone (name) AS (
        SELECT name
          FROM owners
         WHERE name <> :worker
           AND NOT EXISTS (SELECT 1
                             FROM outlast_workers AS w
                            WHERE w.worker = owners.name AND w.lease_until > :now)
    ),
    at_work (tenant, agent, count) AS (
        SELECT l.tenant, l.agent, count(*)
          FROM owners
          JOIN outlast_lanes AS l ON l.worker = owners.name
         WHERE owners.name NOT IN (SELECT name FROM gone)
         GROUP BY l.tenant, l.agent
    ),
    full (agent) AS (
        SELECT most.key
          FROM json_each(:most) AS most
         WHERE most.value <= (SELECT coalesce(sum(count), 0) FROM at_work WHERE agent = most.key)
    ),
    first_ones (lid) AS MATERIALIZED (
        SELECT lid
          FROM outlast_lanes
         WHERE worker IS NULL
           AND ready_at IS NOT NULL
           AND ready_at <= :now
           AND claimable_at <= :now
           AND (:agents IS NULL OR agent IN (SELECT value FROM json_each(:agents)))
           AND agent NOT IN (SELECT agent FROM full)
           AND (:lanes IS NULL OR EXISTS (SELECT 1
                                            FROM json_each(:lanes) AS pattern
                                           WHERE lane GLOB pattern.value))
           AND version <= :version
           AND (:others IS NULL
                OR EXISTS (SELECT 1
                             FROM outlast_pins AS p
                            WHERE p.lid = outlast_lanes.lid AND p.deployment IN (:deployment, '*'))
                OR (outlast_lanes.agent NOT IN (SELECT value FROM json_each(:others))
                    AND NOT EXISTS (SELECT 1
                                      FROM outlast_pins AS p
                                     WHERE p.lid = outlast_lanes.lid
                                       AND (p.stays
                                            OR p.deployment || ' ' || outlast_lanes.agent
                                               IN (SELECT value FROM json_each(:served))))))
           AND (:arrived_since = 0
                OR (SELECT at
                      FROM outlast_log AS g
                     WHERE g.key BETWEEN outlast_lanes.sid << 32 AND outlast_lanes.sid << 32 | outlast_lanes.last_arrival
                     ORDER BY g.key DESC
                     LIMIT 1) >= :arrived_since)
         ORDER BY ready_at, lid
         LIMIT 4 * :limit + 101
    ),
    backlog (is_there) AS MATERIALIZED (
        SELECT count(*) > 4 * :limit + 100 FROM first_ones
    ),
    tenants (name) AS (
        SELECT (SELECT min(tenant) FROM outlast_lanes WHERE worker IS NULL AND ready_at IS NOT NULL)
          FROM backlog
         WHERE is_there
        UNION ALL
        SELECT (SELECT min(tenant)
                  FROM outlast_lanes
                 WHERE worker IS NULL AND ready_at IS NOT NULL AND tenant > tenants.name)
          FROM tenants
         WHERE tenants.name IS NOT NULL
    ),
    free (lid) AS (
        SELECT lid FROM first_ones WHERE NOT (SELECT is_there FROM backlog)
        UNION ALL
        SELECT first.value
          FROM tenants,
               json_each((SELECT json_group_array(lid)
                            FROM (SELECT lid
                                    FROM outlast_lanes
                                   WHERE tenant = tenants.name
                                     AND worker IS NULL
                                     AND ready_at IS NOT NULL
                                     AND ready_at <= :now
                                     AND claimable_at <= :now
                                     AND (:agents IS NULL OR agent IN (SELECT value FROM json_each(:agents)))
                                     AND agent NOT IN (SELECT agent FROM full)
                                     AND (:lanes IS NULL OR EXISTS (SELECT 1
                                                                      FROM json_each(:lanes) AS pattern
                                                                     WHERE lane GLOB pattern.value))
                                     AND version <= :version
                                     AND (:others IS NULL
                                          OR EXISTS (SELECT 1
                                                       FROM outlast_pins AS p
                                                      WHERE p.lid = outlast_lanes.lid AND p.deployment IN (:deployment, '*'))
                                          OR (outlast_lanes.agent NOT IN (SELECT value FROM json_each(:others))
                                              AND NOT EXISTS (SELECT 1
                                                                FROM outlast_pins AS p
                                                               WHERE p.lid = outlast_lanes.lid
                                                                 AND (p.stays
                                                                      OR p.deployment || ' ' || outlast_lanes.agent
                                                                         IN (SELECT value FROM json_each(:served))))))
                                     AND (:arrived_since = 0
                                          OR (SELECT at
                                                FROM outlast_log AS g
                                               WHERE g.key BETWEEN outlast_lanes.sid << 32 AND outlast_lanes.sid << 32 | outlast_lanes.last_arrival
                                               ORDER BY g.key DESC
                                               LIMIT 1) >= :arrived_since)
                                   ORDER BY ready_at, lid
                                   LIMIT :limit))) AS first
    ),
    forgotten (lid) AS (
        SELECT l.lid
          FROM outlast_lanes AS l
          JOIN outlast_sessions AS s ON s.sid = l.sid
         WHERE l.worker = :worker
           AND s.id || ' ' || l.lane NOT IN (SELECT value FROM json_each(:held))
           AND (:agents IS NULL OR l.agent IN (SELECT value FROM json_each(:agents)))
           AND l.version <= :version
         LIMIT :limit
    ),
    orphaned (lid) AS (
        SELECT l.lid
          FROM gone
          JOIN outlast_lanes AS l ON l.worker = gone.name
         WHERE l.ready_at <= :now
           AND l.claimable_at <= :now
           AND (:agents IS NULL OR l.agent IN (SELECT value FROM json_each(:agents)))
           AND l.agent NOT IN (SELECT agent FROM full)
           AND (:lanes IS NULL OR EXISTS (SELECT 1
                                            FROM json_each(:lanes) AS pattern
                                           WHERE l.lane GLOB pattern.value))
           AND l.version <= :version
           AND (:others IS NULL
                OR EXISTS (SELECT 1
                             FROM outlast_pins AS p
                            WHERE p.lid = l.lid AND p.deployment IN (:deployment, '*'))
                OR (l.agent NOT IN (SELECT value FROM json_each(:others))
                    AND NOT EXISTS (SELECT 1
                                      FROM outlast_pins AS p
                                     WHERE p.lid = l.lid
                                       AND (p.stays
                                            OR p.deployment || ' ' || l.agent
                                               IN (SELECT value FROM json_each(:served))))))
           AND (:arrived_since = 0
                OR (SELECT at
                      FROM outlast_log AS g
                     WHERE g.key BETWEEN l.sid << 32 AND l.sid << 32 | l.last_arrival
                     ORDER BY g.key DESC
                     LIMIT 1) >= :arrived_since)
         ORDER BY l.ready_at, l.lid
         LIMIT :limit
    ),
    placed (lid, agent, ready_at, is_ours, place) AS (
        SELECT l.lid, l.agent, coalesce(l.ready_at, 0), l.worker IS :worker,
               row_number() OVER (PARTITION BY l.tenant ORDER BY coalesce(l.ready_at, 0), l.lid)
               + coalesce((SELECT sum(count) FROM at_work WHERE at_work.tenant = l.tenant), 0)
          FROM outlast_lanes AS l
         WHERE l.lid IN (SELECT lid FROM forgotten
                          UNION ALL SELECT lid FROM free
                          UNION ALL SELECT lid FROM orphaned)
    ),
    counted (lid, agent, ready_at, is_ours, place, of_agent) AS (
        SELECT lid, agent, ready_at, is_ours, place,
               sum(NOT is_ours) OVER (PARTITION BY agent ORDER BY place, ready_at, lid
                                      ROWS UNBOUNDED PRECEDING)
               + coalesce((SELECT sum(count) FROM at_work WHERE at_work.agent = placed.agent), 0)
          FROM placed
    ),
    chosen (lid) AS (
        SELECT lid
          FROM counted
         WHERE (is_ours
                OR of_agent <= coalesce((SELECT value FROM json_each(:most) WHERE key = agent), of_agent))
           AND EXISTS (SELECT 1
                         FROM outlast_workers AS w
                        WHERE w.worker = :worker AND w.lease_until > :now)
         ORDER BY place, ready_at, lid
         LIMIT :limit
    )
UPDATE outlast_lanes
   SET worker = :worker,
       fence = fence + 1,
       deaths = deaths + coalesce(worker <> :worker, 0),
       -- A lane that was freed says why; one that has an owner lost it just now.
       evidence = CASE WHEN coalesce(worker, :worker) = :worker THEN evidence
                       ELSE 'lease_expired'
                  END
 WHERE lid IN (SELECT lid FROM chosen)
RETURNING (SELECT id FROM outlast_sessions AS s WHERE s.sid = outlast_lanes.sid),
          tenant, lane, agent, fence, number, last_arrival, deaths,
          (SELECT sum(size) FROM outlast_lanes AS l WHERE l.sid = outlast_lanes.sid), evidence,
          (SELECT json_group_array(DISTINCT call_id)
             FROM outlast_permits AS p
            WHERE p.lid = outlast_lanes.lid),
          (SELECT json_array(p.deployment, p.stays)
             FROM outlast_pins AS p
            WHERE p.lid = outlast_lanes.lid),
          coalesce(ready_at, 0), lid;

-- name: unfinished
-- Ready lanes and those of workers that are not alive, by agent: sessions, lanes, the oldest.
WITH found (agent, sid, ready_at) AS (
    SELECT * FROM (SELECT agent, sid, ready_at
                     FROM outlast_lanes
                    WHERE worker IS NULL
                      AND ready_at IS NOT NULL
                      AND ready_at <= :now
                      AND agent IN (SELECT value FROM json_each(:agents))
                      AND (:lanes IS NULL OR EXISTS (SELECT 1
                                                       FROM json_each(:lanes) AS pattern
                                                      WHERE lane GLOB pattern.value))
                      AND version <= :version
                    ORDER BY ready_at
                    LIMIT :limit)
    UNION ALL
    SELECT * FROM (SELECT agent, sid, ready_at
                     FROM outlast_lanes
                    WHERE worker IS NOT NULL
                      AND worker NOT IN (SELECT value FROM json_each(:living))
                      AND ready_at <= :now
                      AND agent IN (SELECT value FROM json_each(:agents))
                      AND (:lanes IS NULL OR EXISTS (SELECT 1
                                                       FROM json_each(:lanes) AS pattern
                                                      WHERE lane GLOB pattern.value))
                      AND version <= :version
                    LIMIT :limit)
)
SELECT agent, count(DISTINCT sid), count(*), min(ready_at) FROM found GROUP BY agent;

-- name: unserved
-- Ready lanes of agents that no living worker serves, but for those in `agents`.
SELECT agent, count(*)
  FROM (SELECT agent
          FROM outlast_lanes
         WHERE worker IS NULL
           AND ready_at IS NOT NULL
           AND ready_at <= :now
           AND agent NOT IN (SELECT value FROM json_each(:agents))
           AND agent NOT IN (SELECT served.value
                               FROM outlast_workers AS w, json_each(w.agents) AS served
                              WHERE w.lease_until > :now AND NOT w.draining)
         ORDER BY ready_at
         LIMIT :limit)
 GROUP BY agent;

-- name: arrived
-- Of JSON triples of session, lane and offset: the lanes that something arrived for since.
SELECT w.value ->> 0, w.value ->> 1
  FROM json_each(:heads) AS w
  JOIN outlast_sessions AS s ON s.id = w.value ->> 0
  JOIN outlast_lanes AS l ON l.sid = s.sid AND l.lane = w.value ->> 1
 WHERE l.last_arrival > w.value ->> 2;

-- name: next_ready_at
SELECT min(instant)
  FROM (SELECT min(ready_at) AS instant
          FROM outlast_lanes
         WHERE worker IS NULL AND ready_at IS NOT NULL AND ready_at > :after
        UNION ALL
        SELECT min(claimable_at)
          FROM outlast_lanes
         WHERE worker IS NULL AND ready_at IS NOT NULL
           AND claimable_at > 0 AND claimable_at > :after);
