-- name: document
-- Names come before tenants in the key, so that an id is found without its tenant.
SELECT d.kind, d.tenant, d.name, d.version, d.due_at, d.expires_at, d.data
  FROM outlast.documents AS d
 WHERE d.kind = :kind
   AND d.name = :name
   AND (:tenant::text IS NULL OR d.tenant = :tenant)
   AND (d.expires_at = 0 OR d.expires_at > outlast.now_ms());

-- name: documents
SELECT d.kind, d.tenant, d.name, d.version, d.due_at, d.expires_at, d.data
  FROM outlast.documents AS d
 WHERE d.kind = :kind
   AND d.name >= :prefix
   AND starts_with(d.name, :prefix)
   AND (:tenant::text IS NULL OR d.tenant = :tenant)
   AND (d.expires_at = 0 OR d.expires_at > outlast.now_ms())
 ORDER BY d.name, d.tenant;

-- name: add_document
-- An expired document gives way to a new one. On the way other expired ones are removed; one that
-- another transaction has locked is left to the next caller.
WITH
    expired AS (
        SELECT d.kind, d.tenant, d.name
          FROM outlast.documents AS d
         WHERE d.expires_at > 0
           AND d.expires_at <= outlast.now_ms()
           AND (d.kind, d.tenant, d.name) <> (:kind, :tenant, :name)
         LIMIT 100
           FOR UPDATE SKIP LOCKED
    ),
    swept AS (
        DELETE FROM outlast.documents AS d
         USING expired AS e
         WHERE d.kind = e.kind AND d.tenant = e.tenant AND d.name = e.name
    )
INSERT INTO outlast.documents AS d (kind, tenant, name, version, due_at, expires_at, data)
VALUES (:kind, :tenant, :name, :version, :due_at,
        coalesce(outlast.now_ms() + :lifetime::bigint, :expires_at), :data)
    ON CONFLICT (kind, name, tenant) DO UPDATE
   SET version = excluded.version,
       due_at = excluded.due_at,
       expires_at = excluded.expires_at,
       data = excluded.data
 WHERE d.expires_at > 0 AND d.expires_at <= outlast.now_ms()
RETURNING 1;

-- name: replace_document
-- Of two writers that know the same version, the second finds another one.
UPDATE outlast.documents AS d
   SET version = :version,
       due_at = :due_at,
       expires_at = coalesce(outlast.now_ms() + :lifetime::bigint, :expires_at),
       data = :data
 WHERE d.kind = :kind
   AND d.tenant = :tenant
   AND d.name = :name
   AND d.version = :expected
   AND (d.expires_at = 0 OR d.expires_at > outlast.now_ms())
RETURNING 1;

-- name: delete_document
-- An expired document is deleted too, and was not there for the caller.
DELETE FROM outlast.documents AS d
 WHERE d.kind = :kind
   AND d.tenant = :tenant
   AND d.name = :name
   AND d.version = :version
   AND d.data = :data
RETURNING d.expires_at = 0 OR d.expires_at > outlast.now_ms();
