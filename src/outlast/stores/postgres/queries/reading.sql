-- name: load
SELECT * FROM outlast.load(:session_id, :lane, :fold, :after);

-- name: log_after
SELECT * FROM outlast.read(:session_id, :after, :limit, :lane);

-- name: log_before
SELECT * FROM outlast.read_back(:session_id, :before, :limit);

-- name: blobs
SELECT encode(b.hash, 'hex'), b.data
  FROM jsonb_array_elements_text(:hashes) AS w (hash)
  JOIN outlast.blobs AS b ON b.tenant = :tenant AND b.hash = decode(w.hash, 'hex');

-- name: find_arrivals
-- Of JSON triples of session, lane and offset, the lanes with a later arrival. Each lane is looked up
-- by its keys, one after the other.
SELECT w.one->>0, w.one->>1
  FROM jsonb_array_elements(:heads) AS w (one)
 CROSS JOIN LATERAL (
           SELECT s.tenant, s.sid FROM outlast.sessions AS s WHERE s.id = w.one->>0 LIMIT 1
       ) AS s
 CROSS JOIN LATERAL (
           SELECT l.last_arrival
             FROM outlast.lanes AS l
            WHERE l.tenant = s.tenant AND l.sid = s.sid AND l.lane = w.one->>1
            LIMIT 1
       ) AS l
 WHERE l.last_arrival > (w.one->>2)::integer;

-- name: heads_of_blobs
-- The first bytes of a compressed value say how large it is.
SELECT encode(b.hash, 'hex'), substr(b.data, 1, 18)
  FROM jsonb_array_elements_text(:hashes) AS w (hash)
  JOIN outlast.blobs AS b ON b.tenant = :tenant AND b.hash = decode(w.hash, 'hex');

-- name: next_ready_at
SELECT least((SELECT min(ready_at)
                FROM outlast.lanes
               WHERE worker IS NULL AND ready_at IS NOT NULL AND ready_at > :after),
             (SELECT min(claimable_at)
                FROM outlast.lanes
               WHERE worker IS NULL AND ready_at IS NOT NULL
                 AND claimable_at > 0 AND claimable_at > :after));

-- name: unfinished
-- Ready lanes and those of workers that are not alive, by agent: sessions, lanes, the oldest. The last
-- row has the server's time.
SELECT f.agent, count(DISTINCT f.sid), count(*), min(f.ready_at)
  FROM ((SELECT l.agent, l.sid, l.ready_at
           FROM outlast.lanes AS l
          WHERE l.worker IS NULL
            AND l.ready_at IS NOT NULL
            AND l.ready_at <= outlast.now_ms()
            AND :agents::jsonb ? l.agent
            AND (:lanes::jsonb IS NULL
                 OR l.lane LIKE ANY (ARRAY(SELECT jsonb_array_elements_text(:lanes::jsonb))))
            AND l.version <= :version
          ORDER BY l.ready_at
          LIMIT :limit)
        UNION ALL
        (SELECT l.agent, l.sid, l.ready_at
           FROM outlast.lanes AS l
          WHERE l.worker IS NOT NULL
            AND NOT :living::jsonb ? l.worker
            AND l.ready_at <= outlast.now_ms()
            AND :agents::jsonb ? l.agent
            AND (:lanes::jsonb IS NULL
                 OR l.lane LIKE ANY (ARRAY(SELECT jsonb_array_elements_text(:lanes::jsonb))))
            AND l.version <= :version
          LIMIT :limit)) AS f
 GROUP BY f.agent
UNION ALL
SELECT '', 0, 0, outlast.now_ms();

-- name: unserved
-- Ready lanes of agents that no living worker serves, but for those in `agents`.
SELECT f.agent, count(*)
  FROM (SELECT l.agent
          FROM outlast.lanes AS l
         WHERE l.worker IS NULL
           AND l.ready_at IS NOT NULL
           AND l.ready_at <= outlast.now_ms()
           AND NOT :agents::jsonb ? l.agent
           AND NOT EXISTS (SELECT 1
                             FROM outlast.workers AS w
                            WHERE w.lease_until > outlast.now_ms()
                              AND NOT w.draining
                              AND w.agents ? l.agent)
         ORDER BY l.ready_at
         LIMIT :limit) AS f
 GROUP BY f.agent;

-- name: effect
SELECT scope, key, session_id, call_id, state, value
  FROM outlast.effects
 WHERE scope = :scope AND key = :key;
