-- Everything that a fold needs, from one state of the database: the session (its end and the time of
-- its last record), the snapshots made by today's fold, and the rows of the log after the older of
-- both that concern the lane: its own, and those of others that change slices, start or end the
-- session. With `after` only the session and the rows from there on. The session's `data` is the
-- checksum of the record after which the rows come: at `after`, or at the lane's snapshot.
CREATE OR REPLACE FUNCTION outlast.load(session text, name text, today integer, after integer)
    RETURNS TABLE (kind text, first_offset integer, count integer, lane text, at bigint, data bytea)
    LANGUAGE plpgsql STABLE ROWS 100
    SET enable_seqscan = off
AS $$
DECLARE
    s record;
    snapshot record;
    slices record;
    start integer := after;
BEGIN
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = session;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF start IS NULL THEN
        SELECT n.last_offset, n.fold, n.data
          INTO snapshot
          FROM outlast.snapshots AS n
         WHERE n.tenant = s.tenant AND n.sid = s.sid AND n.lane = name AND n.fold = today;
        SELECT n.last_offset, n.fold, n.data
          INTO slices
          FROM outlast.slices AS n
         WHERE n.tenant = s.tenant AND n.sid = s.sid AND n.fold = today;
        RETURN QUERY
        SELECT 'session', s.last_offset, 0, s.tenant::text, s.last_at,
               outlast.checksum_at(s.tenant, s.sid, coalesce(snapshot.last_offset, 0), s.last_offset);
        RETURN QUERY
        SELECT k.kind, k.last_offset, k.fold, NULL, NULL::bigint, k.data
          FROM (VALUES ('snapshot', snapshot.last_offset, snapshot.fold, snapshot.data),
                       ('slices', slices.last_offset, slices.fold, slices.data))
                   AS k (kind, last_offset, fold, data)
         WHERE k.last_offset IS NOT NULL;
        start := least(coalesce(snapshot.last_offset, 0), coalesce(slices.last_offset, 0));
    ELSE
        RETURN QUERY
        SELECT 'session', s.last_offset, 0, s.tenant::text, s.last_at,
               outlast.checksum_at(s.tenant, s.sid, start, s.last_offset);
    END IF;
    RETURN QUERY
    SELECT 'log', g.first_offset, g.count, g.lane::text, g.at, g.data
      FROM outlast.log AS g
     WHERE g.tenant = s.tenant
       AND g.sid = s.sid
       AND g.first_offset >= outlast.row_with(s.tenant, s.sid, start + 1)
       AND (g.lane = name OR g.marks & 6 > 0)
     ORDER BY g.first_offset;
END
$$;

-- A page of the log after a cursor: the session as above, with the checksum of the record at the
-- cursor, then whole rows until they hold `most` records or 8 MiB as they are stored.
CREATE OR REPLACE FUNCTION outlast.read(
        session text, after integer, most integer, only_lane text
    )
    RETURNS TABLE (kind text, first_offset integer, count integer, lane text, at bigint, data bytea)
    LANGUAGE plpgsql STABLE ROWS 100
    SET enable_seqscan = off
AS $$
DECLARE
    s record;
BEGIN
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = session;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'session', s.last_offset, 0, s.tenant::text, s.last_at,
           outlast.checksum_at(s.tenant, s.sid, after, s.last_offset);
    IF after >= s.last_offset THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'log', p.first_offset, p.count, p.lane::text, p.at, p.data
      FROM (SELECT g.*,
                   sum(least(g.count, g.first_offset + g.count - 1 - after))
                       OVER (ORDER BY g.first_offset ROWS UNBOUNDED PRECEDING) AS held,
                   sum(octet_length(g.data))
                       OVER (ORDER BY g.first_offset ROWS UNBOUNDED PRECEDING) AS size
              FROM (SELECT b.first_offset, b.count, b.lane, b.at, b.data
                      FROM outlast.log AS b
                     WHERE b.tenant = s.tenant
                       AND b.sid = s.sid
                       AND b.first_offset >= outlast.row_with(s.tenant, s.sid, after + 1)
                       AND (only_lane IS NULL OR b.lane = only_lane)
                     ORDER BY b.first_offset
                     LIMIT greatest(most, 1)) AS g) AS p
     WHERE p.held - least(p.count, p.first_offset + p.count - 1 - after) < greatest(most, 1)
       AND p.size - octet_length(p.data) < 8388608
     ORDER BY p.first_offset;
END
$$;

-- A page of the log before an offset, newest row first, as long as one after a cursor.
CREATE OR REPLACE FUNCTION outlast.read_back(session text, before integer, most integer)
    RETURNS TABLE (kind text, first_offset integer, count integer, lane text, at bigint, data bytea)
    LANGUAGE plpgsql STABLE ROWS 100
    SET enable_seqscan = off
AS $$
DECLARE
    s record;
BEGIN
    SELECT r.tenant, r.sid, r.last_offset, r.last_at
      INTO s
      FROM outlast.sessions AS r
     WHERE r.id = session;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT 'session', s.last_offset, 0, s.tenant::text, s.last_at, NULL::bytea;
    RETURN QUERY
    SELECT 'log', p.first_offset, p.count, p.lane::text, p.at, p.data
      FROM (SELECT g.*,
                   sum(least(g.count, before - g.first_offset))
                       OVER (ORDER BY g.first_offset DESC ROWS UNBOUNDED PRECEDING) AS held,
                   sum(octet_length(g.data))
                       OVER (ORDER BY g.first_offset DESC ROWS UNBOUNDED PRECEDING) AS size
              FROM (SELECT b.first_offset, b.count, b.lane, b.at, b.data
                      FROM outlast.log AS b
                     WHERE b.tenant = s.tenant AND b.sid = s.sid AND b.first_offset < before
                     ORDER BY b.first_offset DESC
                     LIMIT greatest(most, 1)) AS g) AS p
     WHERE p.held - least(p.count, before - p.first_offset) < greatest(most, 1)
       AND p.size - octet_length(p.data) < 8388608
     ORDER BY p.first_offset DESC;
END
$$;

-- The checksum of the row that holds an offset, as `checksum_of` in core/codec.py makes it; NULL
-- where no row does.
CREATE OR REPLACE FUNCTION outlast.checksum_at(
    owner text, session bigint, wanted integer, log_end integer
) RETURNS bytea
    LANGUAGE plpgsql STABLE
    SET enable_seqscan = off
AS $$
BEGIN
    IF wanted < 1 OR wanted > log_end THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT substr(sha256(int8send(g.at) || g.data), 1, 4)
              FROM outlast.log AS g
             WHERE g.tenant = owner AND g.sid = session AND g.first_offset <= wanted
             ORDER BY g.first_offset DESC
             LIMIT 1);
END
$$;

-- Where the row begins that holds an offset, or the offset itself if no row does yet.
CREATE OR REPLACE FUNCTION outlast.row_with(owner text, session bigint, wanted integer)
    RETURNS integer
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF wanted <= 1 THEN
        RETURN 1;
    END IF;
    RETURN coalesce((SELECT max(g.first_offset)
                       FROM outlast.log AS g
                      WHERE g.tenant = owner AND g.sid = session AND g.first_offset <= wanted),
                    wanted);
END
$$;
