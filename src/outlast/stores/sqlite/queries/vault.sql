-- name: sweep_secrets
DELETE FROM outlast_secrets WHERE expires_at > 0 AND expires_at <= :now;

-- name: add_secret
INSERT INTO outlast_secrets (tenant, name, data, version, expires_at)
VALUES (:tenant, :name, :data, :version, :expires_at)
    ON CONFLICT DO NOTHING;

-- name: replace_secret
-- Of two who know the same version, the second finds another.
UPDATE outlast_secrets
   SET data = :data, version = :version, expires_at = :expires_at
 WHERE tenant = :tenant
   AND name = :name
   AND version = :expected
   AND (expires_at = 0 OR expires_at > :now);

-- name: secret
SELECT tenant, name, data, version, expires_at
  FROM outlast_secrets
 WHERE tenant = :tenant AND name = :name AND (expires_at = 0 OR expires_at > :now);

-- name: drop_secret
-- Says whether it was still there for anybody.
DELETE FROM outlast_secrets
 WHERE tenant = :tenant AND name = :name
RETURNING expires_at = 0 OR expires_at > :now;

-- name: hold
-- A name is to be had if nobody has it, or not any more, or who asks has it already.
INSERT INTO outlast_holds (name, holder, held_until) VALUES (:name, :holder, :now + :length)
    ON CONFLICT (name) DO UPDATE
   SET holder = excluded.holder, held_until = excluded.held_until
 WHERE outlast_holds.holder = excluded.holder OR outlast_holds.held_until <= :now;

-- name: let_go
DELETE FROM outlast_holds WHERE name = :name AND holder = :holder;
