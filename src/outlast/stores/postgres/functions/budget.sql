-- Budgets: six amounts each of limits, of what is reserved and of what is spent, in the order of
-- tokens, billionths of a dollar, model calls, tool calls, milliseconds of active time, steps.

CREATE OR REPLACE FUNCTION outlast.plus(one bigint[], other bigint[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_agg(a + b ORDER BY place) FROM unnest(one, other) WITH ORDINALITY AS u (a, b, place)
$$;

-- What is not limited (2^62) stays so.
CREATE OR REPLACE FUNCTION outlast.raise_limits(limits bigint[], more bigint[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_agg(CASE WHEN a = 4611686018427387904 THEN a ELSE a + b END ORDER BY place)
      FROM unnest(limits, more) WITH ORDINALITY AS u (a, b, place)
$$;

CREATE OR REPLACE FUNCTION outlast.amounts(given jsonb) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_agg(a::bigint ORDER BY place)
      FROM jsonb_array_elements_text(given) WITH ORDINALITY AS u (a, place)
$$;

-- The terms of limits, as they are read: by name, without what is 0.
CREATE OR REPLACE FUNCTION outlast.named_limits(limits bigint[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(jsonb_object_agg(u.name, u.a) FILTER (WHERE u.a <> 0), '{}')
      FROM unnest(limits, ARRAY['tokens', 'nano_usd', 'model_calls', 'tool_calls', 'wall_ms', 'steps'])
           AS u (a, name)
$$;

-- How a budget stands; one of a day by its daily terms, if it has no row yet. NULL terms: none is set.
CREATE OR REPLACE FUNCTION outlast.find_budget(
    owner text, wanted_scope text, wanted_who text, wanted_day integer,
    OUT terms jsonb, OUT limits bigint[], OUT reserved bigint[], OUT spent bigint[], OUT returns bigint
)
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    SELECT b.terms, b.limits, b.reserved, b.spent, b.returns
      INTO terms, limits, reserved, spent, returns
      FROM outlast.budgets AS b
     WHERE b.tenant = owner AND b.scope = wanted_scope AND b.who = wanted_who AND b.day = wanted_day;
    IF NOT FOUND AND wanted_day > 0 THEN
        SELECT b.terms, b.limits, '{0,0,0,0,0,0}', '{0,0,0,0,0,0}', 0
          INTO terms, limits, reserved, spent, returns
          FROM outlast.budgets AS b
         WHERE b.tenant = owner AND b.scope = wanted_scope AND b.who = wanted_who AND b.day = -1;
    END IF;
END
$$;

-- Whether a commit asks for more of a budget than is free. Time that has passed is not asked.
CREATE OR REPLACE FUNCTION outlast.has_no_room(owner text, changes jsonb) RETURNS boolean
    LANGUAGE sql STABLE
AS $$
    SELECT coalesce(bool_or(u.asked > 0 AND u.asked > u.most - u.held - u.used), false)
      FROM jsonb_to_recordset(changes)
               AS c (scope text, who text, day integer, reserved jsonb, spent jsonb, asks boolean,
                     limits jsonb)
     CROSS JOIN LATERAL outlast.find_budget(owner, c.scope, c.who, c.day) AS b
     CROSS JOIN LATERAL unnest(
               outlast.plus(outlast.amounts(c.reserved), outlast.amounts(c.spent)),
               CASE WHEN b.terms IS NOT NULL THEN b.limits
                    WHEN b.returns IS NULL AND c.limits <> 'null' THEN outlast.amounts(c.limits) END,
               coalesce(b.reserved, '{0,0,0,0,0,0}'), coalesce(b.spent, '{0,0,0,0,0,0}')
           ) WITH ORDINALITY AS u (asked, most, held, used, place)
     WHERE c.asks AND u.place <> 5
$$;

-- Whether something has come back to a budget since a lane looked that now waits for it.
CREATE OR REPLACE FUNCTION outlast.has_returned(owner text, seen jsonb) RETURNS boolean
    LANGUAGE sql STABLE
AS $$
    SELECT bool_or(coalesce(CASE WHEN b.terms IS NOT NULL THEN b.returns END, 0) <> c.returns)
      FROM jsonb_to_recordset(seen) AS c (scope text, who text, day integer, returns bigint)
     CROSS JOIN LATERAL outlast.find_budget(owner, c.scope, c.who, c.day) AS b
$$;

-- Change budgets with the commits that were written, in the order of their keys, and make the lanes
-- ready that wait for what comes back. If another transaction was quicker since `has_no_room` looked,
-- the group is tried again and then refuses the commit.
CREATE OR REPLACE FUNCTION outlast.change_budgets(written jsonb, now bigint) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    c record;
    b record;
BEGIN
    FOR c IN
        SELECT w.tenant, w.sid, coalesce(w.asks_budgets, false) AS is_conditional, n.*
          FROM jsonb_to_recordset(written)
                   AS w (tenant text, sid bigint, budgets jsonb, asks_budgets boolean)
         CROSS JOIN LATERAL jsonb_to_recordset(w.budgets)
                        AS n (scope text, who text, day integer, reserved jsonb, spent jsonb,
                              raised jsonb, asks boolean, terms jsonb, limits jsonb)
         ORDER BY w.tenant COLLATE "C", n.scope COLLATE "C", n.who COLLATE "C", n.day
    LOOP
        INSERT INTO outlast.budgets AS b (tenant, scope, who, day, terms, limits)
        SELECT c.tenant, c.scope, c.who, c.day, coalesce(f.terms, nullif(c.terms, 'null')),
               coalesce(f.limits, outlast.amounts(nullif(c.limits, 'null')), '{}')
          FROM outlast.find_budget(c.tenant, c.scope, c.who, c.day) AS f
            ON CONFLICT DO NOTHING;
        PERFORM 1
           FROM outlast.budgets AS r
          WHERE r.tenant = c.tenant AND r.scope = c.scope AND r.who = c.who AND r.day = c.day
            FOR NO KEY UPDATE;
        IF c.is_conditional AND outlast.has_no_room(c.tenant, jsonb_build_array(jsonb_build_object(
               'scope', c.scope, 'who', c.who, 'day', c.day, 'reserved', c.reserved,
               'spent', c.spent, 'asks', c.asks, 'limits', c.limits))) THEN
            RAISE EXCEPTION 'another session was quicker' USING ERRCODE = 'serialization_failure';
        END IF;
        -- A row that `balance_budget` has made anew: only the log knows the terms.
        UPDATE outlast.budgets AS r
           SET terms = c.terms, limits = outlast.amounts(c.limits)
         WHERE r.tenant = c.tenant AND r.scope = c.scope AND r.who = c.who AND r.day = c.day
           AND r.terms IS NULL AND r.revision = 0 AND c.limits <> 'null';
        UPDATE outlast.budgets AS r
           SET reserved = outlast.plus(r.reserved, outlast.amounts(c.reserved)),
               spent = outlast.plus(r.spent, outlast.amounts(c.spent)),
               limits = CASE WHEN r.terms IS NULL THEN r.limits
                             ELSE outlast.raise_limits(r.limits, outlast.amounts(c.raised)) END,
               terms = CASE WHEN r.terms IS NULL THEN NULL
                            ELSE jsonb_set(r.terms, '{limits}', outlast.named_limits(
                                     outlast.raise_limits(r.limits, outlast.amounts(c.raised)))) END,
               returns = r.returns + CASE WHEN c.asks THEN 0 ELSE 1 END
         WHERE r.tenant = c.tenant AND r.scope = c.scope AND r.who = c.who AND r.day = c.day;
        INSERT INTO outlast.budget_uses AS u (tenant, sid, scope, who, day, reserved, spent)
        VALUES (c.tenant, c.sid, c.scope, c.who, c.day, outlast.amounts(c.reserved),
                outlast.amounts(c.spent))
            ON CONFLICT (tenant, sid, scope, who, day) DO UPDATE
           SET reserved = outlast.plus(u.reserved, excluded.reserved),
               spent = outlast.plus(u.spent, excluded.spent);
        IF NOT c.asks THEN
            PERFORM outlast.wake_budget_waiters(c.tenant, c.scope, c.who, c.day, now);
        END IF;
    END LOOP;
END
$$;

-- A lane that is locked is being looked at, or something arrives for it: it is awake by itself. To wait
-- for it here could be for ever, as it may wait for the budget.
CREATE OR REPLACE FUNCTION outlast.wake_budget_waiters(
    owner text, wanted_scope text, wanted_who text, wanted_day integer, now bigint
) RETURNS void
    LANGUAGE sql
AS $$
    WITH
        waiting AS (
            DELETE FROM outlast.budget_waiters AS w
             WHERE w.tenant = owner AND w.scope = wanted_scope AND w.who = wanted_who
               AND w.day = wanted_day
            RETURNING w.tenant, w.sid, w.lane
        ),
        asleep AS (
            SELECT l.tenant, l.sid, l.lane
              FROM outlast.lanes AS l
              JOIN waiting AS w ON w.tenant = l.tenant AND w.sid = l.sid AND w.lane = l.lane
               FOR NO KEY UPDATE OF l SKIP LOCKED
        )
    UPDATE outlast.lanes AS l
       SET ready_at = least(l.ready_at, now)
      FROM asleep AS s
     WHERE l.tenant = s.tenant AND l.sid = s.sid AND l.lane = s.lane;
$$;

-- Note the lanes that rest until something comes back. If it just has, the group is tried again.
CREATE OR REPLACE FUNCTION outlast.await_budgets(written jsonb) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    c record;
BEGIN
    FOR c IN
        SELECT w.tenant, w.sid, w.lane, n.*
          FROM jsonb_to_recordset(written)
                   AS w (tenant text, sid bigint, lane text, awaits_budgets jsonb)
         CROSS JOIN LATERAL jsonb_to_recordset(w.awaits_budgets)
                        AS n (scope text, who text, day integer, returns bigint)
         ORDER BY w.tenant COLLATE "C", n.scope COLLATE "C", n.who COLLATE "C", n.day
    LOOP
        PERFORM 1
           FROM outlast.budgets AS r
          WHERE r.tenant = c.tenant AND r.scope = c.scope AND r.who = c.who AND r.day IN (c.day, -1)
          ORDER BY r.day
            FOR SHARE;
        IF outlast.has_returned(c.tenant, jsonb_build_array(to_jsonb(c))) THEN
            RAISE EXCEPTION 'something came back' USING ERRCODE = 'serialization_failure';
        END IF;
        INSERT INTO outlast.budget_waiters (tenant, scope, who, day, sid, lane)
        VALUES (c.tenant, c.scope, c.who, c.day, c.sid, c.lane)
            ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

-- Set the terms of a budget, or take it away. No row: its revision is another than expected.
CREATE OR REPLACE FUNCTION outlast.set_budget(
    owner text, new_scope text, new_who text, new_day integer, new_terms jsonb, new_limits jsonb,
    expected bigint, today integer, now bigint
) RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    known bigint;
    newest bigint;
BEGIN
    -- One at a time: a reader that knows a revision knows all before it.
    PERFORM pg_advisory_xact_lock(hashtext('outlast budgets'), hashtext('outlast'));
    SELECT b.revision INTO known
      FROM outlast.budgets AS b
     WHERE b.tenant = owner AND b.scope = new_scope AND b.who = new_who AND b.day = new_day
       FOR UPDATE;
    IF expected IS NOT NULL AND coalesce(known, 0) <> expected THEN
        RETURN NULL;
    END IF;
    SELECT coalesce(max(b.revision), 0) + 1 INTO newest FROM outlast.budgets AS b WHERE b.revision > 0;
    INSERT INTO outlast.budgets AS b (tenant, scope, who, day, terms, limits, revision)
    VALUES (owner, new_scope, new_who, new_day, nullif(new_terms, 'null'),
            coalesce(outlast.amounts(nullif(new_limits, 'null')), '{}'), newest)
        ON CONFLICT (tenant, scope, who, day) DO UPDATE
       SET terms = excluded.terms, limits = excluded.limits, revision = excluded.revision,
           returns = b.returns + 1;
    PERFORM outlast.wake_budget_waiters(owner, new_scope, new_who, new_day, now);
    IF new_day = -1 THEN
        UPDATE outlast.budgets AS b
           SET terms = nullif(new_terms, 'null'),
               limits = coalesce(outlast.amounts(nullif(new_limits, 'null')), '{}'),
               returns = b.returns + 1
         WHERE b.tenant = owner AND b.scope = new_scope AND b.who = new_who AND b.day = today;
        PERFORM outlast.wake_budget_waiters(owner, new_scope, new_who, today, now);
    END IF;
    RETURN newest;
END
$$;

-- Give back what an erased session has reserved; what it has spent stays, without it.
CREATE OR REPLACE FUNCTION outlast.erase_budget_uses(owner text, session bigint, name text)
    RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    u record;
BEGIN
    FOR u IN
        SELECT o.*
          FROM outlast.budget_uses AS o
         WHERE o.tenant = owner AND o.sid = session AND o.scope <> 'session'
         ORDER BY o.scope, o.who, o.day
    LOOP
        IF u.reserved <> '{0,0,0,0,0,0}' THEN
            UPDATE outlast.budgets AS b
               SET reserved = (SELECT array_agg(x - y ORDER BY place)
                                 FROM unnest(b.reserved, u.reserved) WITH ORDINALITY AS p (x, y, place)),
                   returns = b.returns + 1
             WHERE b.tenant = owner AND b.scope = u.scope AND b.who = u.who AND b.day = u.day;
            PERFORM outlast.wake_budget_waiters(owner, u.scope, u.who, u.day, outlast.now_ms());
        END IF;
        INSERT INTO outlast.budget_uses AS k (tenant, sid, scope, who, day, reserved, spent)
        VALUES (owner, 0, u.scope, u.who, u.day, '{0,0,0,0,0,0}', u.spent)
            ON CONFLICT (tenant, sid, scope, who, day) DO UPDATE
           SET spent = outlast.plus(k.spent, excluded.spent);
    END LOOP;
    DELETE FROM outlast.budget_uses AS o WHERE o.tenant = owner AND o.sid = session;
    DELETE FROM outlast.budget_waiters AS w WHERE w.tenant = owner AND w.sid = session;
    DELETE FROM outlast.budgets AS b WHERE b.tenant = owner AND b.scope = 'session' AND b.who = name;
END
$$;

-- Make the row of a budget the sum of what sessions have used of it. A commit changes what its session
-- has used behind this same lock, so the sum is that of the commits whose changes the row has.
CREATE OR REPLACE FUNCTION outlast.balance_budget(
    owner text, its_scope text, its_who text, its_day integer, now bigint
) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO outlast.budgets AS b (tenant, scope, who, day, terms, limits)
    SELECT owner, its_scope, its_who, its_day, f.terms, coalesce(f.limits, '{}')
      FROM outlast.find_budget(owner, its_scope, its_who, its_day) AS f
        ON CONFLICT DO NOTHING;
    PERFORM 1
       FROM outlast.budgets AS b
      WHERE b.tenant = owner AND b.scope = its_scope AND b.who = its_who AND b.day = its_day
        FOR NO KEY UPDATE;
    UPDATE outlast.budgets AS b
       SET reserved = s.reserved, spent = s.spent, returns = b.returns + 1
      FROM (SELECT ARRAY[coalesce(sum(u.reserved[1]), 0), coalesce(sum(u.reserved[2]), 0),
                         coalesce(sum(u.reserved[3]), 0), coalesce(sum(u.reserved[4]), 0),
                         coalesce(sum(u.reserved[5]), 0), coalesce(sum(u.reserved[6]), 0)]::bigint[],
                   ARRAY[coalesce(sum(u.spent[1]), 0), coalesce(sum(u.spent[2]), 0),
                         coalesce(sum(u.spent[3]), 0), coalesce(sum(u.spent[4]), 0),
                         coalesce(sum(u.spent[5]), 0), coalesce(sum(u.spent[6]), 0)]::bigint[]
              FROM outlast.budget_uses AS u
             WHERE u.tenant = owner AND u.scope = its_scope AND u.who = its_who AND u.day = its_day
           ) AS s (reserved, spent)
     WHERE b.tenant = owner AND b.scope = its_scope AND b.who = its_who AND b.day = its_day;
    PERFORM outlast.wake_budget_waiters(owner, its_scope, its_who, its_day, now);
END
$$;
