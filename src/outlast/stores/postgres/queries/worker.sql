-- name: find_backend
-- The process that answers. If it is not the one that accepted the connection, there is a pooler.
SELECT pg_backend_pid();

-- name: find_state
-- The state of another process: `active` if it runs a statement, or waits within one.
SELECT a.state FROM pg_stat_activity AS a WHERE a.pid = :pid;

-- name: limit_lock
-- Within this transaction.
SELECT set_config('lock_timeout', :wait || 'ms', true);

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
       (worker, sign, machine, lock_name, lock_device, lock_inode, liveness_address, host, pid,
        started_at, version, concurrency, agents, lanes, at_once, counters, lease, lease_until,
        arrived_since, deployment)
VALUES (:worker, :sign, :machine, :lock_name, :lock_device, :lock_inode, :liveness_address, :host,
        :pid, :started_at, :version, :concurrency, :agents, :lanes, :at_once, :counters, :lease,
        outlast.now_ms() + :lease, :arrived_since, :deployment)
    ON CONFLICT (worker) DO UPDATE
   SET sign = excluded.sign,
       machine = excluded.machine,
       lock_name = excluded.lock_name,
       lock_device = excluded.lock_device,
       lock_inode = excluded.lock_inode,
       liveness_address = excluded.liveness_address,
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
       lease_until = excluded.lease_until,
       arrived_since = excluded.arrived_since,
       deployment = excluded.deployment;

-- name: add_deployment
-- The first worker of a deployment makes it current. Its workers may serve some agents each.
INSERT INTO outlast.deployments AS d (name, agents, began_at, current_since, digests)
VALUES (:deployment, :agents, outlast.now_ms(),
        greatest(outlast.now_ms(), (SELECT max(current_since) + 1 FROM outlast.deployments)),
        :digests)
    ON CONFLICT (name) DO UPDATE
   SET digests = d.digests || excluded.digests,
       agents = (SELECT jsonb_agg(DISTINCT value)
                   FROM jsonb_array_elements(d.agents || excluded.agents));

-- name: promote
UPDATE outlast.deployments
   SET current_since = greatest(outlast.now_ms(),
                                (SELECT max(current_since) + 1 FROM outlast.deployments)),
       retired_to = ''
 WHERE name = :name
RETURNING 1;

-- name: have_look_first
-- Give what waits for code to the workers of a deployment where it is the current one, now: those of
-- a bad version, which are still there, might else look first again and again. A lane that is being
-- claimed is left out.
WITH ours AS (
         SELECT c.name
           FROM (SELECT DISTINCT ON (a.name) a.name, d.name AS deployment
                   FROM outlast.deployments AS d
                  CROSS JOIN LATERAL jsonb_array_elements_text(d.agents) AS a (name)
                  ORDER BY a.name, d.current_since DESC, d.name DESC) AS c
          WHERE c.deployment = :name
            AND EXISTS (SELECT 1
                          FROM outlast.workers AS w
                         WHERE w.deployment = :name AND NOT w.draining
                           AND w.lease_until > outlast.now_ms()
                           AND w.agents @> to_jsonb(c.name))
     ),
     found AS (
         SELECT l.tenant, l.sid, l.lane
           FROM outlast.pins AS p
           JOIN outlast.lanes AS l ON l.tenant = p.tenant AND l.sid = p.sid AND l.lane = p.lane
          WHERE p.deployment = '*'
            AND l.worker IS NULL
            AND l.wait @> '["code"]'
            AND l.agent IN (SELECT ours.name FROM ours)
            FOR NO KEY UPDATE OF l SKIP LOCKED
     ),
     moved AS (
         UPDATE outlast.pins AS p
            SET deployment = :name
           FROM found AS f
          WHERE p.tenant = f.tenant AND p.sid = f.sid AND p.lane = f.lane
     )
UPDATE outlast.lanes AS l
   SET ready_at = outlast.now_ms()
  FROM found AS f
 WHERE l.tenant = f.tenant AND l.sid = f.sid AND l.lane = f.lane;

-- name: retire
-- How many lanes were moved; NULL if one of the two is not known.
SELECT outlast.retire(:name, :to);

-- name: deployments
SELECT d.name, d.agents::text, d.began_at,
       (SELECT count(*)
          FROM outlast.workers AS w
         WHERE w.deployment = d.name AND w.lease_until > outlast.now_ms() AND NOT w.draining),
       (SELECT jsonb_build_array(
                   count(*) FILTER (WHERE l.turn <> ''),
                   count(*) FILTER (WHERE l.turn <> '' AND s.mode = 'run'),
                   count(*) FILTER (WHERE p.stays),
                   min(p.at) FILTER (WHERE l.turn <> '')
               )::text
          FROM outlast.pins AS p
          JOIN outlast.lanes AS l
            ON l.tenant = p.tenant AND l.sid = p.sid AND l.lane = p.lane
          JOIN outlast.sessions AS s ON s.tenant = p.tenant AND s.sid = p.sid
         WHERE p.deployment = d.name AND s.over = ''),
       d.digests::text
  FROM outlast.deployments AS d
 ORDER BY d.current_since DESC, d.name DESC;

-- name: current_deployments
-- Of each agent that a deployment serves: the one of those that was made current last.
SELECT DISTINCT ON (agent.name) agent.name, d.name
  FROM outlast.deployments AS d
 CROSS JOIN LATERAL jsonb_array_elements_text(d.agents) AS agent (name)
 ORDER BY agent.name, d.current_since DESC, d.name DESC;

-- name: pins_of_session
SELECT p.lane, p.deployment, p.stays
  FROM outlast.sessions AS s
  JOIN outlast.pins AS p ON p.tenant = s.tenant AND p.sid = s.sid
 WHERE s.id = :session_id;

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
SELECT outlast.remove_worker(:worker, :evidence, :first_pause, :longest_pause);

-- name: living_workers
-- A lease is renewed by its full length, so its end says when the worker was last heard of. The last
-- column says whether the server sees none of its connections.
SELECT w.worker, w.host, w.pid, w.started_at, w.version, w.concurrency, w.agents::text,
       w.lanes::text, w.at_once::text, w.counters, w.lease_until - w.lease, w.lease_until,
       (SELECT count(*) FROM outlast.lanes AS l WHERE l.worker = w.worker), w.draining,
       w.arrived_since, w.deployment, w.liveness_address, w.machine, w.lock_name, w.lock_device, w.lock_inode,
       w.sign IS NOT NULL
       AND w.sign NOT IN (SELECT k.objid::bigint
                            FROM pg_locks AS k
                           WHERE k.locktype = 'advisory'
                             AND k.database = (SELECT d.oid
                                                 FROM pg_database AS d
                                                WHERE d.datname = current_database())
                             AND k.classid::bigint = :class
                             AND k.objsubid = 2
                             AND k.granted)
  FROM outlast.workers AS w
 WHERE w.lease_until > outlast.now_ms()
 ORDER BY w.started_at, w.worker;

-- name: observed_workers
-- The workers of which an observer on a machine may find evidence: those on the same machine, by
-- their lock files; those with a port that show no sign of life, and now and then (`all_ports`) all
-- that have a port; and workers whose lease ended a day ago. The last column says that a sign is
-- missing. Locks are looked at only where there are ports.
SELECT o.*
  FROM (SELECT w.worker, w.lease_until < outlast.now_ms() - :long_gone AS is_long_gone,
               w.machine, w.lock_name, w.lock_device, w.lock_inode, w.liveness_address,
               w.liveness_address <> ''
               AND w.sign IS NOT NULL
               AND w.sign NOT IN (SELECT k.objid::bigint
                                    FROM pg_locks AS k
                                   WHERE k.locktype = 'advisory'
                                     AND k.database = (SELECT d.oid
                                                         FROM pg_database AS d
                                                        WHERE d.datname = current_database())
                                     AND k.classid::bigint = :class
                                     AND k.objsubid = 2
                                     AND k.granted) AS is_missing
          FROM outlast.workers AS w) AS o
 WHERE o.is_long_gone
    OR o.is_missing
    OR (o.machine = :machine AND o.lock_name <> '')
    OR (:all_ports AND o.liveness_address <> '');
