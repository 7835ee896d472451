-- A group of commits and admissions: one call, one transaction, one round trip. `rounds` is a list
-- of lists of entries, and `data` holds the bytes of all entries, each of which names its parts.
-- Entries that touch the same session, idempotency key or token stand in different rounds, in their
-- order: a round sees everything that earlier ones wrote. Returns the answers in the order of the
-- entries, and the ids of sessions in which a call that waits for a permit was woken.
--
-- Locks are taken in one order by every transaction:
--
--   1. limits, by name
--   2. tenants whose queues are counted, by name
--   3. sessions, by id, those included that commits send to; in a statement of its own, so that
--      the statements after it see what was written while it waited
--   4. blobs, by hash
--   5. lanes, in the order of their sessions
--   6. the usage of erased sessions, by its keys: an erasure does this last
--
-- All other rows belong to a locked session, or are locked without waiting.
--
-- The planner makes one plan for a connection, perhaps on the first day when all tables are empty,
-- and the plan must stay right when they are full. So no choice is left to it, here and in the
-- functions called from here, which run with the settings of this one:
--
--   form                             why
--   ------------------------------   -------------------------------------------------------------
--   enable_… = off, generic plan     rows are looked up one after the other, each by an index
--   key = ANY (ARRAY[other.key])     with `=` a join might begin at the larger table; in this form
--                                    only an index on `key` serves, and only once `other` is known
--   tenant IS NOT DISTINCT FROM x    no index serves this form: so the planner takes the index on
--                                    the id beside it, not one that lists a whole tenant
CREATE OR REPLACE FUNCTION outlast.write(rounds jsonb, data bytea) RETURNS jsonb
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
AS $$
DECLARE
    round jsonb;
    entry jsonb;
    place bigint;
    found jsonb[];
    answers jsonb[] := '{}';
    own jsonb := CASE WHEN jsonb_array_length(rounds) = 1 THEN rounds->0
                      ELSE jsonb_path_query_array(rounds, '$[*][*]') END;
    entries jsonb := own;
    freeing jsonb := '[]';
    refused jsonb := '[]';
    woken jsonb := '[]';
    has_sends boolean;
    has_blobs boolean;
    with_permits jsonpath := '$[*] ? (exists (@.frees) || exists (@.awaits_permit))';
BEGIN
    IF own @? with_permits THEN
        PERFORM outlast.lock_limits('[]', jsonb_path_query_array(own, with_permits));
    END IF;
    has_sends := own @? '$[*].sends';
    IF has_sends THEN
        entries := own || jsonb_path_query_array(own, '$[*].sends[*]');
    END IF;
    has_blobs := entries @? '$[*].blobs';
    IF entries @? '$[*].most_queued_of_tenant' THEN
        PERFORM outlast.lock_tenants(entries);
    END IF;
    PERFORM 1
       FROM (SELECT DISTINCT e->>'session' COLLATE "C" AS id
               FROM jsonb_array_elements(entries) AS e
              ORDER BY id) AS w
      CROSS JOIN LATERAL (
                SELECT 1 FROM outlast.sessions AS s WHERE s.id = w.id FOR NO KEY UPDATE
            ) AS s;
    IF has_blobs THEN
        PERFORM outlast.add_blobs(entries, data);
    END IF;
    IF has_sends THEN
        PERFORM outlast.lock_lanes(entries);
    END IF;
    FOR number IN 0 .. jsonb_array_length(rounds) - 1 LOOP
        round := rounds->number;
        found := outlast.commit(round, data);
        IF array_position(found, NULL) IS NOT NULL THEN
            FOR entry, place IN SELECT * FROM jsonb_array_elements(round) WITH ORDINALITY LOOP
                IF found[place] IS NULL THEN
                    found[place] := outlast.admit(entry, data);
                END IF;
            END LOOP;
        END IF;
        answers := answers || found;
    END LOOP;
    IF own @? '$[*].frees' OR has_blobs THEN
        FOR entry, place IN SELECT * FROM jsonb_array_elements(own) WITH ORDINALITY LOOP
            IF entry ? 'frees' AND answers[place]->>0 = 'written' THEN
                freeing := freeing || entry;
            ELSIF entry ? 'blobs' AND answers[place]->>0 NOT IN ('written', 'admitted') THEN
                refused := refused || entry;
            END IF;
        END LOOP;
    END IF;
    IF has_sends AND has_blobs THEN
        refused := refused || jsonb_path_query_array(own, '$[*].sends[*] ? (exists (@.blobs))');
    END IF;
    IF refused <> '[]' THEN
        PERFORM outlast.drop_unused_blobs(refused);
    END IF;
    IF own @? '$[*].tells' THEN
        PERFORM outlast.mark_cursors_due(own, answers);
    END IF;
    IF freeing <> '[]' THEN
        woken := outlast.free_permits(freeing);
    END IF;
    RETURN jsonb_build_object('answers', to_jsonb(answers), 'woken', woken);
END
$$;

-- The rows of the log with arrivals of a lane after the last one that its owner has seen. The first
-- row may begin before it.
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
