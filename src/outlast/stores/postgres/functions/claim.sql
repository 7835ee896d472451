-- Give lanes to a worker: ready ones without a living owner. Lanes that it owns and does not know of
-- come first, since the answer to an earlier claim was lost. Tenants take turns: a lane's place is
-- the number of its tenant's lanes at work plus those of the tenant that are ready for longer.
-- `ready_at` stays: if this worker dies before its first commit, the lane is as ready as it was.
-- The claim changes lanes only, waits for no lock and writes no record.
--
-- Usually all ready lanes fit into `first_ones`. Only behind a backlog are the tenants visited one by
-- one, each with one step in an index, so that a tenant with ten thousand ready lanes costs no more
-- than one with a hundred.
--
-- The answer is {"claims": [[session, tenant, lane, agent, fence, number, last arrival, deaths,
-- size of the session, how its owner before lost it, calls with permits, its pin]], "now": what time it is,
-- "next": the first instant at which another lane can be claimed, or null, "epoch": see clock.sql}.
CREATE OR REPLACE FUNCTION outlast.claim(
    claimer text, most integer, held jsonb, served jsonb, readable integer, names jsonb,
    most_of_agent jsonb
) RETURNS jsonb
    LANGUAGE plpgsql
    -- See write.sql: one plan, by index, however many lanes there were at the last ANALYZE.
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET enable_material = off
    SET enable_sort = off
    SET enable_incremental_sort = off
    SET jit = off
AS $$
DECLARE
    now bigint := outlast.now_ms();
    -- While the server was away no worker could renew: no lease has run out until the server has
    -- been up for as long as the lease.
    up bigint := outlast.uptime_ms();
    -- Other workers may claim the same lanes at this moment: look at more than are wanted.
    enough integer := 4 * most + 100;
    patterns text[] := ARRAY(SELECT jsonb_array_elements_text(names));
    -- The claimer wants only lanes for which something has arrived since then; NULL: its lease has
    -- run out, or it has none.
    since bigint := (SELECT w.arrived_since
                       FROM outlast.workers AS w
                      WHERE w.worker = claimer
                        AND (w.lease_until > now OR up < w.lease));
    -- Where there are deployments: the claimer's, the agents of which another one is the current one,
    -- and which deployments have workers that claim, and of which agents.
    are_named boolean := EXISTS (SELECT 1 FROM outlast.deployments);
    mine text;
    others text[];
    tended text[];
    claims jsonb;
BEGIN
    PERFORM outlast.note_server_start();
    IF are_named THEN
        mine := coalesce((SELECT w.deployment FROM outlast.workers AS w WHERE w.worker = claimer), '');
        others := ARRAY(SELECT a.name
                          FROM (SELECT DISTINCT ON (c.name) c.name, d.name AS current
                                  FROM outlast.deployments AS d
                                 CROSS JOIN LATERAL jsonb_array_elements_text(d.agents) AS c (name)
                                 ORDER BY c.name, d.current_since DESC, d.name DESC) AS a
                         WHERE a.current <> mine);
        tended := ARRAY(SELECT w.deployment || ' ' || c.name
                          FROM outlast.workers AS w
                         CROSS JOIN LATERAL jsonb_array_elements_text(w.agents) AS c (name)
                         WHERE w.deployment <> '' AND NOT w.draining
                           AND (w.lease_until > now OR up < w.lease));
    END IF;
    IF most > 0 AND since IS NOT NULL THEN
        IF most_of_agent <> '{}' THEN
            -- The lanes at work, counted below, must not change before this claim ends.
            PERFORM pg_advisory_xact_lock(hashtextextended('outlast.lanes', 0));
        END IF;
        WITH RECURSIVE
            owners (name) AS (
                (SELECT l.worker FROM outlast.lanes AS l
                  WHERE l.worker IS NOT NULL ORDER BY l.worker LIMIT 1)
                UNION ALL
                SELECT (SELECT l.worker FROM outlast.lanes AS l
                         WHERE l.worker > o.name ORDER BY l.worker LIMIT 1)
                  FROM owners AS o
                 WHERE o.name IS NOT NULL
            ),
            gone (name) AS (
                SELECT o.name
                  FROM owners AS o
                 WHERE o.name <> claimer
                   AND NOT EXISTS (SELECT 1
                                     FROM outlast.workers AS w
                                    WHERE w.worker = o.name
                                      AND (w.lease_until > now OR up < w.lease))
            ),
            -- Agents that have as many lanes at work as they may have.
            full_agents (name) AS (
                SELECT m.key
                  FROM jsonb_each_text(most_of_agent) AS m
                 WHERE m.value::bigint <= (SELECT count(*)
                                             FROM owners AS o
                                             JOIN outlast.lanes AS l ON l.worker = o.name
                                            WHERE l.agent = m.key
                                              AND o.name NOT IN (SELECT g.name FROM gone AS g))
            ),
            forgotten AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence,
                       coalesce(l.ready_at, 0) AS ready_at
                  FROM outlast.lanes AS l
                  JOIN outlast.sessions AS s ON s.tenant = ANY (ARRAY[l.tenant]) AND s.sid = l.sid
                 WHERE l.worker = claimer
                   AND NOT held ? (s.id || ' ' || l.lane)
                   AND (served IS NULL OR served ? l.agent)
                   AND l.version <= readable
                 LIMIT enough
            ),
            orphaned AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence, l.ready_at
                  FROM gone AS g
                  JOIN outlast.lanes AS l ON l.worker = g.name
                 WHERE l.ready_at <= now
                   AND l.claimable_at <= now
                   AND (served IS NULL OR served ? l.agent)
                   AND l.agent NOT IN (SELECT f.name FROM full_agents AS f)
                   AND (names IS NULL OR l.lane LIKE ANY (patterns))
                   AND l.version <= readable
                   AND (NOT are_named
                        OR EXISTS (SELECT 1
                                     FROM outlast.pins AS p
                                    WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
                                      AND p.deployment IN (mine, '*'))
                        OR (l.agent <> ALL (others)
                            AND NOT EXISTS (SELECT 1
                                              FROM outlast.pins AS p
                                             WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
                                               AND (p.stays OR p.deployment || ' ' || l.agent = ANY (tended)))))
                   AND (since = 0
                        OR (SELECT g.at
                              FROM outlast.log AS g
                             WHERE g.tenant = l.tenant
                               AND g.sid = l.sid
                               AND g.first_offset <= l.last_arrival
                             ORDER BY g.first_offset DESC
                             LIMIT 1) >= since)
                 ORDER BY l.ready_at, l.lid
                 LIMIT enough
            ),
            first_ones AS (
                SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence, l.ready_at
                  FROM outlast.lanes AS l
                 WHERE l.worker IS NULL
                   AND l.ready_at IS NOT NULL
                   AND l.ready_at <= now
                   AND l.claimable_at <= now
                   AND (served IS NULL OR served ? l.agent)
                   AND l.agent NOT IN (SELECT f.name FROM full_agents AS f)
                   AND (names IS NULL OR l.lane LIKE ANY (patterns))
                   AND l.version <= readable
                   AND (NOT are_named
                        OR EXISTS (SELECT 1
                                     FROM outlast.pins AS p
                                    WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
                                      AND p.deployment IN (mine, '*'))
                        OR (l.agent <> ALL (others)
                            AND NOT EXISTS (SELECT 1
                                              FROM outlast.pins AS p
                                             WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
                                               AND (p.stays OR p.deployment || ' ' || l.agent = ANY (tended)))))
                   AND (since = 0
                        OR (SELECT g.at
                              FROM outlast.log AS g
                             WHERE g.tenant = l.tenant
                               AND g.sid = l.sid
                               AND g.first_offset <= l.last_arrival
                             ORDER BY g.first_offset DESC
                             LIMIT 1) >= since)
                 ORDER BY l.ready_at
                 LIMIT enough + 1
            ),
            backlog (is_there) AS (SELECT count(*) > enough FROM first_ones),
            tenants (name) AS (
                (SELECT l.tenant FROM outlast.lanes AS l
                  WHERE l.worker IS NULL AND l.ready_at IS NOT NULL
                    AND (SELECT b.is_there FROM backlog AS b)
                  ORDER BY l.tenant LIMIT 1)
                UNION ALL
                SELECT (SELECT l.tenant FROM outlast.lanes AS l
                         WHERE l.worker IS NULL AND l.ready_at IS NOT NULL AND l.tenant > t.name
                         ORDER BY l.tenant LIMIT 1)
                  FROM tenants AS t
                 WHERE t.name IS NOT NULL
            ),
            free AS (
                SELECT f.* FROM first_ones AS f WHERE NOT (SELECT b.is_there FROM backlog AS b)
                UNION ALL
                SELECT l.*
                  FROM tenants AS t
                 CROSS JOIN LATERAL (
                           SELECT l.lid, l.tenant, l.agent, l.sid, l.lane, l.worker, l.fence, l.ready_at
                             FROM outlast.lanes AS l
                            WHERE l.worker IS NULL
                              AND l.ready_at IS NOT NULL
                              -- One tenant, in a form that only the tenant's index serves.
                              AND l.tenant >= t.name
                              AND (l.tenant, l.ready_at) <= (t.name, now)
                              AND l.claimable_at <= now
                              AND (served IS NULL OR served ? l.agent)
                              AND l.agent NOT IN (SELECT f.name FROM full_agents AS f)
                              AND (names IS NULL OR l.lane LIKE ANY (patterns))
                              AND l.version <= readable
                              AND (NOT are_named
                                   OR EXISTS (SELECT 1
                                                FROM outlast.pins AS p
                                               WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
                                                 AND p.deployment IN (mine, '*'))
                                   OR (l.agent <> ALL (others)
                                       AND NOT EXISTS (SELECT 1
                                                         FROM outlast.pins AS p
                                                        WHERE p.tenant = l.tenant AND p.sid = l.sid AND p.lane = l.lane
                                                          AND (p.stays OR p.deployment || ' ' || l.agent = ANY (tended)))))
                              AND (since = 0
                                   OR (SELECT g.at
                                         FROM outlast.log AS g
                                        WHERE g.tenant = l.tenant
                                          AND g.sid = l.sid
                                          AND g.first_offset <= l.last_arrival
                                        ORDER BY g.first_offset DESC
                                        LIMIT 1) >= since)
                            ORDER BY l.tenant, l.ready_at
                            LIMIT enough
                       ) AS l
            ),
            candidates AS (
                SELECT 0 AS class, f.* FROM forgotten AS f
                UNION ALL
                SELECT 1, o.* FROM orphaned AS o
                UNION ALL
                SELECT 1, f.* FROM free AS f
            ),
            -- With one tenant only, and no limit for agents, there is nothing to share out.
            at_work (tenant, agent, lanes) AS (
                SELECT l.tenant, l.agent, count(*)
                  FROM owners AS o
                  JOIN outlast.lanes AS l ON l.worker = o.name
                 WHERE (most_of_agent <> '{}'
                        OR (SELECT min(c.tenant) <> max(c.tenant) FROM candidates AS c))
                   AND o.name NOT IN (SELECT g.name FROM gone AS g)
                 GROUP BY l.tenant, l.agent
            ),
            placed AS (
                SELECT c.*,
                       coalesce((SELECT sum(a.lanes) FROM at_work AS a WHERE a.tenant = c.tenant), 0)
                       + row_number() OVER (PARTITION BY c.class, c.tenant
                                                ORDER BY c.ready_at, c.lid) AS place
                  FROM candidates AS c
            ),
            counted AS (
                SELECT p.*,
                       coalesce((SELECT sum(a.lanes) FROM at_work AS a WHERE a.agent = p.agent), 0)
                       + sum(p.class) OVER (PARTITION BY p.agent
                                                ORDER BY p.class, p.place, p.ready_at, p.lid
                                                 ROWS UNBOUNDED PRECEDING) AS of_agent
                  FROM placed AS p
            ),
            chosen AS (
                SELECT p.*
                  FROM counted AS p
                 WHERE p.class = 0
                    OR p.of_agent <= coalesce((most_of_agent->>p.agent)::integer, p.of_agent)
                 ORDER BY p.class, p.place, p.ready_at, p.lid
                 LIMIT enough
            ),
            -- A lane that another transaction has locked is left to it; one whose owner changed
            -- since it was looked at is no longer a candidate.
            taken AS (
                SELECT l.tenant, l.sid, l.lane, c.class, c.place, c.ready_at, c.lid
                  FROM chosen AS c
                  JOIN outlast.lanes AS l
                    ON l.tenant = ANY (ARRAY[c.tenant]) AND l.sid = c.sid AND l.lane = c.lane
                 WHERE l.fence = c.fence AND l.worker IS NOT DISTINCT FROM c.worker
                 ORDER BY c.class, c.place, c.ready_at, c.lid
                 LIMIT most
                   FOR NO KEY UPDATE OF l SKIP LOCKED
            ),
            claimed AS (
                UPDATE outlast.lanes AS l
                   SET worker = claimer,
                       fence = l.fence + 1,
                       deaths = l.deaths + coalesce(l.worker <> claimer, false)::integer,
                       -- A lane that was freed says why; one that has an owner lost it just now.
                       evidence = CASE WHEN coalesce(l.worker, claimer) = claimer THEN l.evidence
                                       ELSE 'lease_expired'
                                  END
                  FROM taken AS t
                 WHERE l.tenant = ANY (ARRAY[t.tenant]) AND l.sid = t.sid AND l.lane = t.lane
                RETURNING l.sid, l.tenant, l.lane, l.agent, l.fence, l.number, l.last_arrival,
                          l.deaths, l.evidence, t.class, t.place, t.ready_at, l.lid
            )
        SELECT jsonb_agg(
                   jsonb_build_array(
                       s.id, c.tenant, c.lane, c.agent, c.fence, c.number, c.last_arrival,
                       c.deaths,
                       (SELECT sum(n.size)
                          FROM outlast.lanes AS n
                         WHERE n.tenant = c.tenant AND n.sid = c.sid),
                       c.evidence,
                       (SELECT coalesce(jsonb_agg(DISTINCT p.call_id), '[]')
                          FROM outlast.permits AS p
                         WHERE p.tenant = c.tenant AND p.sid = c.sid AND p.lane = c.lane),
                       (SELECT jsonb_build_array(p.deployment, p.stays)
                          FROM outlast.pins AS p
                         WHERE p.tenant = c.tenant AND p.sid = c.sid AND p.lane = c.lane)
                   )
                   ORDER BY c.class, c.place, c.ready_at, c.lid
               )
          INTO claims
          FROM claimed AS c
          JOIN outlast.sessions AS s ON s.tenant = ANY (ARRAY[c.tenant]) AND s.sid = c.sid;
    END IF;
    RETURN jsonb_build_object(
        'claims', coalesce(claims, '[]'),
        'now', now,
        'epoch', outlast.epoch(),
        'next', least((SELECT min(l.ready_at)
                         FROM outlast.lanes AS l
                        WHERE l.worker IS NULL AND l.ready_at IS NOT NULL AND l.ready_at > now),
                      (SELECT min(l.claimable_at)
                         FROM outlast.lanes AS l
                        WHERE l.worker IS NULL AND l.ready_at IS NOT NULL
                          AND l.claimable_at > 0 AND l.claimable_at > now))
    );
END
$$;

-- Delete a worker and free its lanes, locked in the one order of lanes (see write.sql); `why` is the
-- evidence that the next owner is given. They can be claimed at once, but for those that have lost
-- another owner before: see FIRST_PAUSE in store/work.py. Returns whether this call deleted it.
CREATE OR REPLACE FUNCTION outlast.remove_worker(
    gone text, why text, first_pause bigint, longest_pause bigint
) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
BEGIN
    DELETE FROM outlast.workers AS w WHERE w.worker = gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM 1
       FROM outlast.lanes AS l
       JOIN outlast.sessions AS s ON s.tenant = ANY (ARRAY[l.tenant]) AND s.sid = l.sid
      WHERE l.worker = gone
      ORDER BY s.id, l.lane
        FOR NO KEY UPDATE OF l;
    UPDATE outlast.lanes AS l
       SET worker = NULL,
           evidence = why,
           deaths = l.deaths + 1,
           claimable_at = CASE WHEN l.deaths = 0 THEN 0
                               ELSE outlast.now_ms()
                                    + least(longest_pause, first_pause << least(l.deaths - 1, 20))
                               END
     WHERE l.worker = gone;
    RETURN true;
END
$$;

-- Pin to another deployment all that is pinned to one, which is current no longer; where it was, the
-- other one is. Returns how many lanes were moved; NULL if one of them is not known. The lock has
-- commits that pin to the old one be over before, or read later that it is retired.
CREATE OR REPLACE FUNCTION outlast.retire(old text, heir text) RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    was_current boolean;
    moved bigint;
BEGIN
    IF (SELECT count(*) FROM outlast.deployments WHERE name IN (old, heir)) < 2 THEN
        RETURN NULL;
    END IF;
    LOCK TABLE outlast.pins IN SHARE ROW EXCLUSIVE MODE;
    was_current := old IN (SELECT DISTINCT ON (a.name) d.name
                             FROM outlast.deployments AS d
                            CROSS JOIN LATERAL jsonb_array_elements_text(d.agents) AS a (name)
                            ORDER BY a.name, d.current_since DESC, d.name DESC);
    UPDATE outlast.deployments
       SET current_since = CASE name WHEN old THEN 0 ELSE current_since END,
           retired_to = CASE name WHEN heir THEN '' ELSE heir END
     WHERE name IN (old, heir) OR retired_to = old;
    IF was_current THEN
        UPDATE outlast.deployments
           SET current_since = greatest(outlast.now_ms(),
                                        (SELECT max(current_since) + 1 FROM outlast.deployments))
         WHERE name = heir;
    END IF;
    UPDATE outlast.pins SET deployment = heir WHERE deployment = old;
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END
$$;
