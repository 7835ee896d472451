-- name: add_secret
-- Where one has expired there is none. On the way others that have are taken out of the world;
-- one that somebody has in hand is left to the next.
WITH
    expired AS (
        SELECT s.tenant, s.name
          FROM outlast.secrets AS s
         WHERE s.expires_at > 0
           AND s.expires_at <= outlast.now_ms()
           AND (s.tenant, s.name) <> (:tenant, :name)
         LIMIT 100
           FOR UPDATE SKIP LOCKED
    ),
    swept AS (
        DELETE FROM outlast.secrets AS s
         USING expired AS e
         WHERE s.tenant = e.tenant AND s.name = e.name
    )
INSERT INTO outlast.secrets AS s (tenant, name, data, version, expires_at)
VALUES (:tenant, :name, :data, :version, :expires_at)
    ON CONFLICT (tenant, name) DO UPDATE
   SET data = excluded.data, version = excluded.version, expires_at = excluded.expires_at
 WHERE s.expires_at > 0 AND s.expires_at <= outlast.now_ms()
RETURNING 1;

-- name: replace_secret
-- Of two who know the same version, the second finds another.
UPDATE outlast.secrets AS s
   SET data = :data, version = :version, expires_at = :expires_at
 WHERE s.tenant = :tenant
   AND s.name = :name
   AND s.version = :expected
   AND (s.expires_at = 0 OR s.expires_at > outlast.now_ms())
RETURNING 1;

-- name: secret
SELECT s.tenant, s.name, s.data, s.version, s.expires_at
  FROM outlast.secrets AS s
 WHERE s.tenant = :tenant
   AND s.name = :name
   AND (s.expires_at = 0 OR s.expires_at > outlast.now_ms());

-- name: drop_secret
DELETE FROM outlast.secrets AS s
 WHERE s.tenant = :tenant AND s.name = :name
RETURNING s.expires_at = 0 OR s.expires_at > outlast.now_ms();

-- name: hold
-- A name is to be had if nobody has it, or not any more, or who asks has it already.
INSERT INTO outlast.holds AS h (name, holder, held_until)
VALUES (:name, :holder, outlast.now_ms() + :length)
    ON CONFLICT (name) DO UPDATE
   SET holder = excluded.holder, held_until = excluded.held_until
 WHERE h.holder = excluded.holder OR h.held_until <= outlast.now_ms()
RETURNING 1;

-- name: let_go
DELETE FROM outlast.holds AS h WHERE h.name = :name AND h.holder = :holder;
