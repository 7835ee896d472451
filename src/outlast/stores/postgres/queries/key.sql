-- name: add_key
-- An id is used once; asked again after a lost acknowledgement, it is there.
INSERT INTO outlast.keys (tenant, id, name, scopes, digest, created_at, revoked_at)
VALUES (:tenant, :key_id, :name, :scopes, :digest, :created_at, :revoked_at)
    ON CONFLICT DO NOTHING;

-- name: key
SELECT k.id, k.tenant, k.name, k.scopes::text, k.digest, k.created_at, k.revoked_at
  FROM outlast.keys AS k
 WHERE k.id = :key_id;

-- name: keys
SELECT k.id, k.tenant, k.name, k.scopes::text, k.digest, k.created_at, k.revoked_at
  FROM outlast.keys AS k
 WHERE (:tenant::text IS NULL OR k.tenant = :tenant)
 ORDER BY k.id;

-- name: revoke_key
UPDATE outlast.keys AS k
   SET revoked_at = CASE WHEN k.revoked_at = 0 THEN :at ELSE k.revoked_at END
 WHERE k.id = :key_id
RETURNING 1;
