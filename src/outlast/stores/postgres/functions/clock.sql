-- The database's clock, in milliseconds. It decides which worker owns a lane, whatever the workers'
-- own clocks say. Tests set another instant for one transaction.
CREATE OR REPLACE FUNCTION outlast.now_ms() RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce(
        nullif(current_setting('outlast_clock.now', true), '')::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    );

-- For how long this run of the server has accepted connections; for ever where a test sets the time.
CREATE OR REPLACE FUNCTION outlast.uptime_ms() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN CASE
        WHEN coalesce(current_setting('outlast_clock.now', true), '') <> '' THEN 1e15::bigint
        ELSE coalesce(
            (SELECT outlast.now_ms() - s.open_since
               FROM outlast.server AS s
              WHERE s.one AND s.started_at = pg_postmaster_start_time()),
            0
        )
    END;

-- Note the first question to this run of the server. A run begins with a start, or with a recovery
-- after one of its processes crashed, which leaves no row; or with a backup that is restored while
-- the server runs: its row is in a file of another number.
CREATE OR REPLACE FUNCTION outlast.note_server_start() RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1
                     FROM outlast.server AS s
                    WHERE s.one
                      AND s.started_at = pg_postmaster_start_time()
                      AND s.file_node = pg_relation_filenode(s.tableoid)) THEN
        INSERT INTO outlast.server AS s (started_at, open_since, epoch, file_node)
        VALUES (pg_postmaster_start_time(), outlast.now_ms(), gen_random_uuid(),
                pg_relation_filenode('outlast.server'))
            ON CONFLICT (one) DO UPDATE
           SET started_at = excluded.started_at,
               open_since = excluded.open_since,
               epoch = excluded.epoch,
               file_node = excluded.file_node
         WHERE s.started_at <> excluded.started_at OR s.file_node <> excluded.file_node;
    END IF;
END
$$;

-- The epoch of this run of the server; NULL until the first claim has noted it. What a worker has read
-- in another epoch may have been lost since.
CREATE OR REPLACE FUNCTION outlast.epoch() RETURNS uuid
    LANGUAGE sql STABLE
    RETURN (SELECT s.epoch
              FROM outlast.server AS s
             WHERE s.one
               AND s.started_at = pg_postmaster_start_time()
               AND s.file_node = pg_relation_filenode(s.tableoid));
