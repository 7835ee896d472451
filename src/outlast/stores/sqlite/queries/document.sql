-- name: document
-- Names come before tenants in the key, so that an id is found without its tenant.
SELECT kind, tenant, name, version, due_at, expires_at, data
  FROM outlast_documents
 WHERE kind = :kind
   AND name = :name
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (expires_at = 0 OR expires_at > :now);

-- name: documents
SELECT kind, tenant, name, version, due_at, expires_at, data
  FROM outlast_documents
 WHERE kind = :kind
   AND name >= :prefix
   AND substr(name, 1, length(:prefix)) = :prefix
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (expires_at = 0 OR expires_at > :now)
 ORDER BY name, tenant;

-- name: sweep_documents
DELETE FROM outlast_documents WHERE expires_at > 0 AND expires_at <= :now;

-- name: add_document
INSERT INTO outlast_documents (kind, tenant, name, version, due_at, expires_at, data)
VALUES (:kind, :tenant, :name, :version, :due_at, :expires_at, :data)
    ON CONFLICT DO NOTHING;

-- name: replace_document
-- Of two writers that know the same version, the second finds another one.
UPDATE outlast_documents
   SET version = :version, due_at = :due_at, expires_at = :expires_at, data = :data
 WHERE kind = :kind
   AND name = :name
   AND tenant = :tenant
   AND version = :expected
   AND (expires_at = 0 OR expires_at > :now);

-- name: delete_document
-- An expired document is deleted too, and was not there for the caller.
DELETE FROM outlast_documents
 WHERE kind = :kind
   AND name = :name
   AND tenant = :tenant
   AND version = :version
   AND data = :data
RETURNING expires_at = 0 OR expires_at > :now;
