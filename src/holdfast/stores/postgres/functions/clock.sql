-- The database's clock, in milliseconds: what decides who owns a lane, whatever the workers'
-- own clocks say. Tests set another instant for one transaction; nothing else ever does.
CREATE FUNCTION holdfast.now_ms() RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce(
        nullif(current_setting('holdfast_clock.now', true), '')::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    );

-- How long the server has been up. Where a test sets the time, it has been up for ever.
CREATE FUNCTION holdfast.uptime_ms() RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE
        WHEN coalesce(current_setting('holdfast_clock.now', true), '') <> '' THEN 1e15
        ELSE extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) * 1000
    END::bigint;
