-- name: enlist
INSERT OR REPLACE INTO outlast_workers
    (worker, machine, host, pid, started_at, version, lease, lease_until,
     concurrency, agents, lanes, at_once, counters, arrived_since, deployment)
VALUES (:worker, :machine, :host, :pid, :started_at, :version, :lease, :now + :lease,
        :concurrency, :agents, :lanes, :at_once, :counters, :arrived_since, :deployment);

-- name: claimer
-- What a claim has to know of the worker, and whether there are deployments at all.
SELECT w.arrived_since, w.deployment, EXISTS (SELECT 1 FROM outlast_deployments)
  FROM outlast_workers AS w
 WHERE w.worker = :worker;

-- name: add_deployment
-- The first worker of a deployment makes it current. Its workers may serve some agents each.
INSERT INTO outlast_deployments (name, agents, began_at, current_since, digests)
VALUES (:deployment, :agents, :now,
        max(:now, coalesce((SELECT max(current_since) + 1 FROM outlast_deployments), 0)),
        :digests)
    ON CONFLICT (name) DO UPDATE
   SET digests = json_patch(outlast_deployments.digests, excluded.digests),
       agents = (SELECT json_group_array(value)
                   FROM (SELECT value FROM json_each(outlast_deployments.agents)
                          UNION
                         SELECT value FROM json_each(excluded.agents)));

-- name: promote
UPDATE outlast_deployments
   SET current_since = max(:now, (SELECT max(current_since) + 1 FROM outlast_deployments)),
       retired_to = ''
 WHERE name = :name
RETURNING 1;

-- name: find_waiting_for_code
SELECT l.lid
  FROM outlast_pins AS p
  JOIN outlast_lanes AS l ON l.lid = p.lid
 WHERE p.deployment = '*'
   AND l.worker IS NULL
   AND l.agent IN (SELECT value FROM json_each(:agents))
   AND EXISTS (SELECT 1 FROM json_each(l.wait) AS w WHERE w.value = 'code');

-- name: pin_to_current
UPDATE outlast_pins SET deployment = :name WHERE lid = :lid;

-- name: look_now
UPDATE outlast_lanes SET ready_at = :now WHERE lid = :lid;

-- name: demote
UPDATE outlast_deployments
   SET current_since = iif(name = :name, 0, current_since),
       retired_to = iif(name = :to, '', :to)
 WHERE name IN (:name, :to) OR retired_to = :name;

-- name: deployments
SELECT d.name, d.agents, d.began_at,
       (SELECT count(*)
          FROM outlast_workers AS w
         WHERE w.deployment = d.name AND w.lease_until > :now AND NOT w.draining),
       (SELECT json_array(sum(l.turn <> ''), sum(l.turn <> '' AND s.mode = 'run'), sum(p.stays),
                          min(iif(l.turn <> '', p.at, NULL)))
          FROM outlast_pins AS p
          JOIN outlast_lanes AS l ON l.lid = p.lid
          JOIN outlast_sessions AS s ON s.sid = l.sid
         WHERE p.deployment = d.name AND s.over = ''),
       d.digests
  FROM outlast_deployments AS d
 ORDER BY d.current_since DESC, d.name DESC;

-- name: current_deployments
-- Of each agent that a deployment serves: the one of those that was made current last.
SELECT agent.value, d.name, max(d.current_since)
  FROM outlast_deployments AS d, json_each(d.agents) AS agent
 GROUP BY agent.value;

-- name: served
-- Which deployments have workers that claim, and of which agents.
SELECT DISTINCT w.deployment || ' ' || agent.value
  FROM outlast_workers AS w, json_each(w.agents) AS agent
 WHERE w.deployment <> '' AND w.lease_until > :now AND NOT w.draining;

-- name: move_pins
UPDATE outlast_pins SET deployment = :to WHERE deployment = :name;

-- name: pin
-- A worker of a deployment that was retired meanwhile pins to the one that it was retired to.
INSERT INTO outlast_pins (lid, deployment, stays, at)
VALUES (:lid,
        coalesce((SELECT heir.name
                    FROM outlast_deployments AS d
                    JOIN outlast_deployments AS heir ON heir.name = d.retired_to
                    JOIN outlast_lanes AS l ON l.lid = :lid
                   WHERE d.name = :deployment
                     AND l.agent IN (SELECT value FROM json_each(heir.agents))),
                 :deployment),
        :stays, :now)
    ON CONFLICT (lid) DO UPDATE
   SET deployment = excluded.deployment, stays = excluded.stays, at = excluded.at;

-- name: unpin
DELETE FROM outlast_pins WHERE lid = :lid;

-- name: pin_with_session
-- A new lane of a session that stays with a deployment stays with it too.
INSERT INTO outlast_pins (lid, deployment, stays, at)
SELECT :lid, p.deployment, 1, :now
  FROM outlast_lanes AS l
  JOIN outlast_pins AS p ON p.lid = l.lid
 WHERE l.sid = :sid AND p.stays
 LIMIT 1;

-- name: pins_of_session
SELECT l.lane, p.deployment, p.stays
  FROM outlast_sessions AS s
  JOIN outlast_lanes AS l ON l.sid = s.sid
  JOIN outlast_pins AS p ON p.lid = l.lid
 WHERE s.id = :session_id;

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
       w.draining, w.arrived_since, w.deployment
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
