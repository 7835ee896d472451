-- Add the blobs of a group that are new, and lock all of them until its end, by hash. A transaction
-- that erases the last user of one waits for this one, or this one for it; after such a wait a blob
-- that was there may have to be added again, hence the loop.
CREATE OR REPLACE FUNCTION outlast.add_blobs(wanted jsonb, data bytea) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    owners text[];
    hashes bytea[];
    starts integer[];
    sizes integer[];
    held integer;
BEGIN
    SELECT array_agg(u.tenant), array_agg(u.hash), array_agg(u.start), array_agg(u.size)
      INTO owners, hashes, starts, sizes
      FROM (SELECT DISTINCT ON (1, 2) coalesce(w->>'tenant', s.tenant) AS tenant,
                   decode(x.hash, 'hex') AS hash, x.start, x.size
              FROM jsonb_array_elements(wanted) AS w
              LEFT JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[w->>'session'])
             CROSS JOIN LATERAL jsonb_to_recordset(w->'blobs')
                        AS x (hash text, start integer, size integer)) AS u
     WHERE u.tenant IS NOT NULL;
    LOOP
        INSERT INTO outlast.blobs (tenant, hash, data)
        SELECT u.tenant, u.hash, substr(data, u.start + 1, u.size)
          FROM unnest(owners, hashes, starts, sizes) AS u (tenant, hash, start, size)
         ORDER BY u.tenant COLLATE "C", u.hash
            ON CONFLICT (tenant, hash) DO NOTHING;
        PERFORM 1
           FROM unnest(owners, hashes) AS u (tenant, hash)
           JOIN outlast.blobs AS b ON b.tenant = ANY (ARRAY[u.tenant]) AND b.hash = u.hash
          ORDER BY b.tenant, b.hash
            FOR KEY SHARE OF b;
        GET DIAGNOSTICS held = ROW_COUNT;
        EXIT WHEN held = coalesce(cardinality(hashes), 0);
    END LOOP;
END
$$;

-- Note that a session's log points at blobs, which `add_blobs` has added.
CREATE OR REPLACE FUNCTION outlast.link_blobs(owner text, session bigint, wanted jsonb) RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO outlast.blob_users (tenant, hash, sid)
    SELECT owner, decode(w->>'hash', 'hex'), session
      FROM jsonb_array_elements(wanted) AS w
        ON CONFLICT DO NOTHING
$$;

-- Delete the blobs of these entries that no session uses: the entries were refused. Entries that
-- were written may be among them.
CREATE OR REPLACE FUNCTION outlast.drop_unused_blobs(wanted jsonb) RETURNS void
    LANGUAGE sql
AS $$
    DELETE FROM outlast.blobs AS b
     USING jsonb_array_elements(wanted) AS w
      LEFT JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[w->>'session'])
     CROSS JOIN LATERAL jsonb_array_elements(w->'blobs') AS x
     WHERE b.tenant = coalesce(w->>'tenant', s.tenant)
       AND b.hash = decode(x->>'hash', 'hex')
       AND NOT EXISTS (SELECT 1
                         FROM outlast.blob_users AS u
                        WHERE u.tenant = b.tenant AND u.hash = b.hash)
$$;

-- Lock the blobs that a session uses, so that `unlink_blobs` may delete them.
CREATE OR REPLACE FUNCTION outlast.lock_blobs(owner text, session bigint) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
       FROM outlast.blob_users AS u
       JOIN outlast.blobs AS b ON b.tenant = u.tenant AND b.hash = u.hash
      WHERE u.tenant = owner AND u.sid = session
      ORDER BY b.hash
        FOR UPDATE OF b;
END
$$;

-- Delete a session's use of its blobs, all of them locked, and the blobs that no other uses.
CREATE OR REPLACE FUNCTION outlast.unlink_blobs(owner text, session bigint) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM outlast.blobs AS b
     USING outlast.blob_users AS u
     WHERE u.tenant = owner AND u.sid = session
       AND b.tenant = u.tenant AND b.hash = u.hash
       AND NOT EXISTS (SELECT 1
                         FROM outlast.blob_users AS o
                        WHERE o.tenant = u.tenant AND o.hash = u.hash AND o.sid <> session);
    DELETE FROM outlast.blob_users AS u WHERE u.tenant = owner AND u.sid = session;
END
$$;
