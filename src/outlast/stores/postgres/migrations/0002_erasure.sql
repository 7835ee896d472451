-- Sessions can be erased, with the blobs that only they used; outlets tell of events outside;
-- keys open the server; a lane says what it waits for, and a worker what it has counted. Agents
-- hand work to others, sign in elsewhere and act by the calendar: children, secrets, schedules.
--
-- Lanes come first: whoever writes to the log has touched them, so from there on nobody is at
-- it. Who was about to goes on with what it finds here: the functions that an older Outlast
-- asks for take what they took.
ALTER TABLE outlast.lanes ADD COLUMN wait text NOT NULL DEFAULT '';
ALTER TABLE outlast.workers ADD COLUMN tally text NOT NULL DEFAULT '';
ALTER TABLE outlast.blobs DROP COLUMN touched_at;

CREATE TABLE outlast.blob_uses (
    tenant text COLLATE "C" NOT NULL,
    hash bytea NOT NULL,
    sid bigint NOT NULL,
    PRIMARY KEY (tenant, hash, sid)
);

CREATE INDEX blob_uses_of_session ON outlast.blob_uses (tenant, sid);

-- Who uses the blobs that are there is only in the logs, compressed. They get a user that is
-- never erased, and so they stay, even when all sessions are gone that used them.
INSERT INTO outlast.blob_uses (tenant, hash, sid)
SELECT b.tenant, b.hash, 0 FROM outlast.blobs AS b;

CREATE TABLE outlast.outlets (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    url text NOT NULL,
    events jsonb NOT NULL,
    cursor integer NOT NULL DEFAULT 0,
    told bigint NOT NULL DEFAULT 0,
    due_at bigint,
    held bigint NOT NULL DEFAULT 0,
    held_until bigint NOT NULL DEFAULT 0,
    tries integer NOT NULL DEFAULT 0,
    error text NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, sid, name)
) WITH (fillfactor = 60);

CREATE INDEX outlets_due ON outlast.outlets (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outlets_failing ON outlast.outlets (tenant, sid) WHERE tries > 0;

CREATE TABLE outlast.dead_letters (
    number bigint GENERATED ALWAYS AS IDENTITY,
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    outlet text COLLATE "C" NOT NULL,
    event_offset integer NOT NULL,
    type text NOT NULL,
    error text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (tenant, sid, outlet, event_offset)
);

CREATE INDEX dead_letters_in_order ON outlast.dead_letters (number);
CREATE INDEX dead_letters_of_tenant ON outlast.dead_letters (tenant, number);

CREATE TABLE outlast.keys (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    scopes jsonb NOT NULL,
    digest text NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (id, tenant)
);

CREATE TABLE outlast.children (
    tenant text COLLATE "C" NOT NULL,
    sid bigint NOT NULL,
    parent text COLLATE "C" NOT NULL CHECK (parent <> ''),
    doomed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, sid)
);

CREATE INDEX children_of_parent ON outlast.children (parent, sid);
CREATE INDEX children_doomed ON outlast.children (sid) WHERE doomed;

CREATE TABLE outlast.secrets (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    version bigint NOT NULL,
    expires_at bigint NOT NULL CHECK (expires_at >= 0),
    PRIMARY KEY (tenant, name)
);

CREATE INDEX secrets_expiring ON outlast.secrets (expires_at) WHERE expires_at > 0;

CREATE TABLE outlast.holds (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    holder text COLLATE "C" NOT NULL,
    held_until bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE outlast.schedules (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    fingerprint text NOT NULL,
    next_at bigint,
    paused boolean NOT NULL,
    fired_at bigint NOT NULL,
    session_id text COLLATE "C" NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX requests_open_of_tenant ON outlast.requests (tenant, rid) WHERE state = 'open';
CREATE INDEX tokens_dead ON outlast.tokens (tenant, token, tid) WHERE NOT living;
CREATE INDEX effects_of_session ON outlast.effects (tenant, session_id);

CREATE OR REPLACE VIEW outlast.session_list AS
SELECT s.sid, s.id, s.tenant, s.agent, s.mode, s.created_at, s.over,
       s.last_at AS updated_at, s.last_offset,
       CASE WHEN s.over <> '' THEN s.over
            ELSE (SELECT CASE min(CASE
                                  WHEN l.status = 'running' THEN 1
                                  WHEN l.status = 'queued' OR l.status = 'idle' AND l.queued > 0
                                  THEN 2
                                  WHEN l.status = 'waiting' THEN 3
                                  WHEN l.status = 'sleeping' THEN 4
                                  ELSE 5 END)
                         WHEN 1 THEN 'running'
                         WHEN 2 THEN 'queued'
                         WHEN 3 THEN 'waiting'
                         WHEN 4 THEN 'sleeping'
                         ELSE 'idle' END
                    FROM outlast.lanes AS l
                   WHERE l.tenant = s.tenant AND l.sid = s.sid)
       END AS status,
       coalesce((SELECT t.token
                   FROM outlast.tokens AS t
                  WHERE t.tenant = s.tenant AND t.sid = s.sid AND t.living
                  ORDER BY t.tid DESC
                  LIMIT 1), '') AS token,
       coalesce((SELECT c.parent
                   FROM outlast.children AS c
                  WHERE c.tenant = s.tenant AND c.sid = s.sid), '') AS parent,
       (SELECT jsonb_agg(jsonb_build_array(l.lane, CASE WHEN l.status = 'idle' AND l.queued > 0
                                                        THEN 'queued' ELSE l.status END,
                                           l.turn, coalesce(l.worker, ''), l.fence, l.ready_at,
                                           l.queued)
                         ORDER BY l.lid)
          FROM outlast.lanes AS l
         WHERE l.tenant = s.tenant AND l.sid = s.sid)::text AS lanes
  FROM outlast.sessions AS s;

DROP FUNCTION IF EXISTS outlast.keep_blobs(text, jsonb, bytea, bigint);
