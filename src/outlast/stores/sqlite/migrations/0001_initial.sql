-- The first schema. What each column is for: ../schema.sql

CREATE TABLE outlast_sessions (
    sid INTEGER PRIMARY KEY CHECK (sid BETWEEN 1 AND 2147483647),
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    mode TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    over TEXT NOT NULL DEFAULT '' CHECK (over IN ('', 'completed', 'failed', 'ended'))
) STRICT;

CREATE INDEX outlast_sessions_of_tenant ON outlast_sessions (tenant, id);

CREATE TABLE outlast_log (
    key INTEGER PRIMARY KEY,
    count INTEGER NOT NULL CHECK (count > 0),
    lane TEXT,
    at INTEGER NOT NULL,
    marks INTEGER NOT NULL CHECK (marks BETWEEN 0 AND 7),
    data BLOB NOT NULL
) STRICT;

CREATE TABLE outlast_lanes (
    lid INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    lane TEXT NOT NULL,
    agent TEXT NOT NULL,
    worker TEXT,
    fence INTEGER NOT NULL DEFAULT 0,
    number INTEGER NOT NULL DEFAULT 0,
    last_arrival INTEGER NOT NULL,
    ready_at INTEGER,
    version INTEGER NOT NULL,
    status TEXT NOT NULL,
    turn TEXT NOT NULL DEFAULT '',
    queued INTEGER NOT NULL DEFAULT 0 CHECK (queued >= 0),
    digest BLOB,
    UNIQUE (sid, lane)
) STRICT;

CREATE INDEX outlast_lanes_ready ON outlast_lanes (ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX outlast_lanes_owned ON outlast_lanes (worker) WHERE worker IS NOT NULL;

CREATE TABLE outlast_deliveries (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    lane TEXT,
    kind TEXT NOT NULL,
    position INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'joined', 'settled')),
    outcome TEXT,
    turn TEXT,
    settled_offset INTEGER,
    fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 16)
) STRICT;

CREATE TABLE outlast_dispatches (
    tenant TEXT NOT NULL,
    name BLOB NOT NULL CHECK (length(name) = 16),
    delivery INTEGER NOT NULL,
    UNIQUE (tenant, name)
) STRICT;

CREATE TABLE outlast_requests (
    rid INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    sid INTEGER NOT NULL,
    lane TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL
        CHECK (state IN ('open', 'answered', 'cancelled', 'superseded', 'expired')),
    expires_at INTEGER NOT NULL,
    answered_offset INTEGER NOT NULL DEFAULT 0,
    data TEXT NOT NULL
) STRICT;

CREATE INDEX outlast_requests_of_session ON outlast_requests (sid);
CREATE INDEX outlast_requests_open ON outlast_requests (rid) WHERE state = 'open';

CREATE TABLE outlast_tokens (
    tid INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    token TEXT NOT NULL,
    sid INTEGER NOT NULL,
    living INTEGER NOT NULL CHECK (living IN (0, 1))
) STRICT;

CREATE UNIQUE INDEX outlast_tokens_living ON outlast_tokens (tenant, token) WHERE living;
CREATE INDEX outlast_tokens_of_session ON outlast_tokens (sid);

CREATE TABLE outlast_blobs (
    tenant TEXT NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32),
    touched_at INTEGER NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (tenant, hash)
) STRICT;

CREATE TABLE outlast_snapshots (
    lid INTEGER PRIMARY KEY,
    offset INTEGER NOT NULL,
    fold INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE outlast_slices (
    sid INTEGER PRIMARY KEY,
    offset INTEGER NOT NULL,
    fold INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE outlast_effects (
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    session_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('held', 'done', 'unknown', 'free')),
    value TEXT NOT NULL,
    UNIQUE (scope, key)
) STRICT;

CREATE TABLE outlast_workers (
    worker TEXT NOT NULL PRIMARY KEY,
    machine TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    version TEXT NOT NULL,
    lease INTEGER NOT NULL CHECK (lease > 0),
    lease_until INTEGER NOT NULL
) STRICT;

CREATE TABLE outlast_listeners (
    address TEXT NOT NULL PRIMARY KEY,
    place TEXT NOT NULL
) STRICT;

CREATE VIEW outlast_session_list AS
SELECT s.sid, s.id, s.tenant, s.agent, s.mode, s.created_at, s.over,
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
