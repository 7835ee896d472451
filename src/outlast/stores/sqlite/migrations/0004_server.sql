-- What a server needs: sessions that can be erased, keys, outbox cursors, and what a lane waits for.

ALTER TABLE outlast_lanes ADD COLUMN wait TEXT NOT NULL DEFAULT '';

ALTER TABLE outlast_workers ADD COLUMN tally TEXT NOT NULL DEFAULT '';

CREATE INDEX outlast_tokens_dead ON outlast_tokens (tenant, token) WHERE NOT living;

CREATE INDEX outlast_effects_shared ON outlast_effects (session_id)
    WHERE substr(scope, 1, 8) <> 'session:';

-- Nobody knows who uses the blobs that were written before this: session 0 does, which is never
-- erased, so they stay. A process of the last version that still runs knows nothing of users
-- either: without `touched_at` it cannot write a blob that would be taken away from under it.
CREATE TABLE outlast_blob_users (
    tenant TEXT NOT NULL,
    hash BLOB NOT NULL,
    sid INTEGER NOT NULL,
    PRIMARY KEY (tenant, hash, sid)
) STRICT, WITHOUT ROWID;

CREATE INDEX outlast_blob_users_of_session ON outlast_blob_users (sid);

INSERT INTO outlast_blob_users (tenant, hash, sid) SELECT tenant, hash, 0 FROM outlast_blobs;

ALTER TABLE outlast_blobs DROP COLUMN touched_at;

CREATE TABLE outlast_erasures (
    sid INTEGER PRIMARY KEY
) STRICT;

CREATE TABLE outlast_outbox_cursors (
    oid INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    -- Signs what is posted to `url`, where the caller brought a secret. It is in no log.
    secret TEXT NOT NULL DEFAULT '',
    events TEXT NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    told INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    held_until INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER,
    tries INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    UNIQUE (sid, name)
) STRICT;

CREATE INDEX outlast_outbox_cursors_due ON outlast_outbox_cursors (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE outlast_dead_letters (
    did INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    cursor_name TEXT NOT NULL,
    offset INTEGER NOT NULL,
    type TEXT NOT NULL,
    error TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;

CREATE INDEX outlast_dead_letters_of_session ON outlast_dead_letters (sid);

CREATE TABLE outlast_keys (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER NOT NULL DEFAULT 0
) STRICT;
