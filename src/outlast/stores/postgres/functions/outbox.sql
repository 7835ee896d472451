-- The commits of a group that were written and have something to tell make the outbox cursors of
-- their sessions due, by the database's own clock. One that is due already stays so as it was.
CREATE OR REPLACE FUNCTION outlast.tell(wanted jsonb, answers jsonb[]) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE outlast.outbox_cursors AS o
       SET told = o.told + 1, due_at = coalesce(o.due_at, outlast.now_ms())
      FROM (SELECT DISTINCT s.tenant, s.sid
              FROM jsonb_array_elements(wanted) WITH ORDINALITY AS w (one, place)
              JOIN outlast.sessions AS s ON s.id = ANY (ARRAY[w.one->>'session'])
             WHERE w.one ? 'tells' AND answers[w.place]->>0 = 'written') AS t
     WHERE o.tenant = ANY (ARRAY[t.tenant]) AND o.sid = t.sid;
END
$$;
