-- What a commit sends to other sessions: each is admitted, or dropped where it cannot be. The
-- sessions are locked, as those of the whole group. Two that come with the same name at once
-- meet in the index of names: then the group is tried again, and finds the first.
CREATE OR REPLACE FUNCTION outlast.send(letters jsonb, data bytea) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    letter jsonb;
BEGIN
    FOR letter IN SELECT * FROM jsonb_array_elements(letters) LOOP
        -- A delivery that is there under another name would fail again each time.
        IF letter->>'name' IS NULL OR NOT EXISTS (
            SELECT 1 FROM outlast.deliveries AS d WHERE d.id = letter->>'delivery'
        ) THEN
            PERFORM outlast.admit(letter, data);
        END IF;
    END LOOP;
END
$$;

-- Which cancels among letters are made out to another turn than the one that is open: the place
-- of each and that turn, or nothing.
CREATE OR REPLACE FUNCTION outlast.find_other_turns(letters jsonb) RETURNS jsonb
    LANGUAGE sql
AS $$
    SELECT jsonb_build_array(
               'turns', jsonb_agg(jsonb_build_array(w.place - 1, coalesce(l.turn, '')))
           )
      FROM jsonb_array_elements(letters) WITH ORDINALITY AS w (letter, place)
      LEFT JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[w.letter->>'session'])
      LEFT JOIN outlast.lanes AS l
        ON l.tenant = ANY (ARRAY[s.tenant]) AND l.sid = s.sid AND l.lane = w.letter->>'lane'
     WHERE w.letter->>'turn' <> coalesce(l.turn, '')
    HAVING count(*) > 0
$$;

-- Hold the lanes of a group that sends, in the order in which everybody does who waits for
-- several (see bury): then they are written to in any order.
CREATE OR REPLACE FUNCTION outlast.hold_lanes(entries jsonb) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
       FROM (SELECT DISTINCT e->>'session' AS session, e->>'lane' AS lane
               FROM jsonb_array_elements(entries) AS e) AS w
       JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[w.session])
       JOIN outlast.lanes AS l
         ON l.tenant = ANY (ARRAY[s.tenant]) AND l.sid = s.sid AND l.lane = w.lane
      ORDER BY s.id, l.lane
        FOR NO KEY UPDATE OF l;
END
$$;
