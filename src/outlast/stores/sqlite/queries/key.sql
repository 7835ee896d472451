-- name: add_key
INSERT INTO outlast_keys (id, tenant, name, scopes, digest, created_at, revoked_at)
VALUES (:key_id, :tenant, :name, :scopes, :digest, :created_at, :revoked_at);

-- name: key
SELECT id, tenant, name, scopes, digest, created_at, revoked_at
  FROM outlast_keys
 WHERE id = :key_id;

-- name: keys
-- Ids sort by the time they were made.
SELECT id, tenant, name, scopes, digest, created_at, revoked_at
  FROM outlast_keys
 WHERE :tenant IS NULL OR tenant = :tenant
 ORDER BY id;

-- name: revoke_key
-- What was revoked stays revoked since then.
UPDATE outlast_keys SET revoked_at = iif(revoked_at, revoked_at, :at) WHERE id = :key_id;
