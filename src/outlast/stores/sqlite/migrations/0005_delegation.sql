-- What agents need that hand work to others, act by the calendar and sign in elsewhere.

ALTER TABLE outlast_sessions ADD COLUMN parent TEXT NOT NULL DEFAULT '';

ALTER TABLE outlast_sessions ADD COLUMN doomed INTEGER NOT NULL DEFAULT 0 CHECK (doomed IN (0, 1));

CREATE INDEX outlast_sessions_of_parent ON outlast_sessions (parent, id) WHERE parent <> '';

CREATE INDEX outlast_sessions_doomed ON outlast_sessions (id) WHERE doomed;

CREATE TABLE outlast_secrets (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    version INTEGER NOT NULL,
    expires_at INTEGER NOT NULL CHECK (expires_at >= 0),
    PRIMARY KEY (tenant, name)
) STRICT;

CREATE INDEX outlast_secrets_expiring ON outlast_secrets (expires_at) WHERE expires_at > 0;

CREATE TABLE outlast_holds (
    name TEXT NOT NULL PRIMARY KEY,
    holder TEXT NOT NULL,
    held_until INTEGER NOT NULL
) STRICT;

CREATE TABLE outlast_schedules (
    name TEXT NOT NULL PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    next_at INTEGER,
    paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
    fired_at INTEGER NOT NULL,
    session_id TEXT NOT NULL
) STRICT;

DROP VIEW outlast_session_list;

CREATE VIEW outlast_session_list AS
SELECT s.sid, s.id, s.tenant, s.agent, s.mode, s.created_at, s.over, s.parent,
       g.at AS updated_at,
       (g.key & 4294967295) + g.count - 1 AS last_offset,
       iif(s.over <> '', s.over,
           (SELECT CASE min(CASE
                            WHEN l.status = 'running' THEN 1
                            WHEN l.status = 'queued' OR l.status = 'idle' AND l.queued THEN 2
                            WHEN l.status = 'waiting' THEN 3
                            WHEN l.status = 'sleeping' THEN 4
                            ELSE 5 END)
                   WHEN 1 THEN 'running'
                   WHEN 2 THEN 'queued'
                   WHEN 3 THEN 'waiting'
                   WHEN 4 THEN 'sleeping'
                   ELSE 'idle' END
              FROM outlast_lanes AS l
             WHERE l.sid = s.sid)) AS status,
       coalesce((SELECT t.token
                   FROM outlast_tokens AS t
                  WHERE t.sid = s.sid AND t.living
                  ORDER BY t.tid DESC
                  LIMIT 1), '') AS token
  FROM outlast_sessions AS s
  JOIN outlast_log AS g ON g.key = (SELECT max(key)
                                       FROM outlast_log
                                      WHERE key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295);
