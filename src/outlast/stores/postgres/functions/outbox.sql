-- Make the outbox cursors due of sessions whose commits were written and have something to tell, by
-- the database's clock. A cursor that is due already stays due as it was.
CREATE OR REPLACE FUNCTION outlast.mark_cursors_due(wanted jsonb, answers jsonb[]) RETURNS void
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
