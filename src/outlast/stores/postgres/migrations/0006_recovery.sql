-- When one of its processes is killed, the server drops everybody and recovers without a new
-- start. A table that is not logged is empty after that. Where the schema is new, nobody can have
-- been kept from it: then it counts from the server's start.
ALTER TABLE outlast.server SET UNLOGGED;
INSERT INTO outlast.server (started_at, open_since)
VALUES (pg_postmaster_start_time(), extract(epoch FROM pg_postmaster_start_time()) * 1000)
    ON CONFLICT DO NOTHING;
