-- A group of commits and admissions: one call, one transaction, one round trip. `wanted` is
-- what each of them says, and `data` all their bytes, of which each names its parts. The
-- answers come in the same order, and with them the ids of sessions that somebody was woken in.
-- Limits are locked first, by name, and tenants whose queues are counted. Then sessions are, by
-- id: whoever writes to several does so in this order, and what commits send counts as the rest
-- does. It is a statement of its own, so that those which follow see what was written while this
-- one waited. Then blobs are, by hash, then lanes in the order of their sessions; the rest is its
-- session's, or is held by nobody who waits.
--
-- Commits that only move their lane, add to the log and change one delivery are written all at
-- once, if nothing stands against them. All else is done one by one, and so is whatever that left.
--
-- Plans are made once, on the first day before anything was counted, and have to stay right
-- whatever the tables grow to. So nothing is left to choose, here and in what is called from here:
-- rows are looked up one after the other, by one index.
--
--   key = ANY (ARRAY[other.key])          only an index can do, and only once the other is there:
--                                         with `=`, a join might begin at the larger table
--   other IS NOT DISTINCT FROM something  no index can: so none but the one that is meant does
CREATE OR REPLACE FUNCTION outlast.write(wanted jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
AS $$
DECLARE
    one jsonb;
    place bigint;
    answers jsonb[];
    freeing jsonb := '[]';
    refused jsonb := '[]';
    entries jsonb := wanted;
    has_sends boolean;
    has_blobs boolean;
    with_permits jsonpath := '$[*] ? (exists (@.frees) || exists (@.awaits_permit))';
BEGIN
    IF wanted @? with_permits THEN
        PERFORM outlast.hold_limits('[]', jsonb_path_query_array(wanted, with_permits));
    END IF;
    has_sends := wanted @? '$[*].sends';
    IF has_sends THEN
        entries := wanted || jsonb_path_query_array(wanted, '$[*].sends[*]');
    END IF;
    has_blobs := entries @? '$[*].blobs';
    IF entries @? '$[*].most_queued_of_tenant' THEN
        PERFORM outlast.hold_tenants(entries);
    END IF;
    PERFORM 1
       FROM (SELECT DISTINCT e->>'session' COLLATE "C" AS id
               FROM jsonb_array_elements(entries) AS e
              ORDER BY id) AS w
      CROSS JOIN LATERAL (
                SELECT 1 FROM outlast.sessions AS s WHERE s.id = w.id FOR NO KEY UPDATE
            ) AS s;
    IF has_blobs THEN
        PERFORM outlast.lay_blobs(entries, data);
    END IF;
    IF has_sends THEN
        PERFORM outlast.hold_lanes(entries);
    END IF;
    answers := array_fill(NULL::jsonb, ARRAY[jsonb_array_length(wanted)]);
    FOR place, one IN SELECT * FROM outlast.commit_plain(wanted, data) LOOP
        answers[place] := one;
    END LOOP;
    FOR one, place IN SELECT * FROM jsonb_array_elements(wanted) WITH ORDINALITY LOOP
        CONTINUE WHEN answers[place] IS NOT NULL;
        answers[place] := CASE WHEN one ? 'fence' THEN outlast.commit(one, data)
                               ELSE outlast.admit(one, data) END;
        IF one ? 'frees' AND answers[place]->>0 = 'written' THEN
            freeing := freeing || one;
        ELSIF one ? 'blobs' AND answers[place]->>0 NOT IN ('written', 'admitted') THEN
            refused := refused || one;
        END IF;
    END LOOP;
    IF has_sends AND has_blobs THEN
        refused := refused || jsonb_path_query_array(wanted, '$[*].sends[*] ? (exists (@.blobs))');
    END IF;
    IF refused <> '[]' THEN
        PERFORM outlast.clear_blobs(refused);
    END IF;
    IF wanted @? '$[*].tells' THEN
        PERFORM outlast.tell(wanted, answers);
    END IF;
    RETURN jsonb_build_object(
        'answers', to_jsonb(answers), 'woken', outlast.free_permits(freeing)
    );
END
$$;

-- What others added to a lane after the last arrival that its owner has seen: the rows of
-- the log that hold it. The first may begin before it.
CREATE OR REPLACE FUNCTION outlast.arrivals(
    owner text, session bigint, name text, seen integer, last integer
) RETURNS jsonb
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF last <= seen THEN
        RETURN '[]';
    END IF;
    RETURN (
        SELECT coalesce(
                   jsonb_agg(
                       jsonb_build_array(g.first_offset, g.at, encode(g.data, 'hex'))
                       ORDER BY g.first_offset
                   ),
                   '[]'
               )
          FROM outlast.log AS g
         WHERE g.tenant = owner
           AND g.sid = session
           AND g.first_offset <= last
           AND g.first_offset >= coalesce((SELECT max(b.first_offset)
                                             FROM outlast.log AS b
                                            WHERE b.tenant = owner
                                              AND b.sid = session
                                              AND b.first_offset <= seen + 1), seen + 1)
           AND g.first_offset + g.count - 1 > seen
           AND g.marks & 1 = 1
           AND g.lane = name
    );
END
$$;
