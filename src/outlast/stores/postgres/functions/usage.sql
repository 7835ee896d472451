-- Add what commits tell to the usage of their sessions, which are locked. Each entry has its tenant, its
-- sid and the time at which it was written; its changes have keys that differ.
CREATE OR REPLACE FUNCTION outlast.add_usage(written jsonb) RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO outlast.usage AS u
           (tenant, sid, day, agent, model, principal, remote,
            input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
            model_calls, unpriced_calls, nano_usd)
    SELECT w.tenant, w.sid, w.at / 86400000, s.agent, c.model, c.principal, c.remote,
           coalesce(n.input_tokens, 0), coalesce(n.output_tokens, 0), coalesce(n.cache_read_tokens, 0),
           coalesce(n.cache_write_tokens, 0), coalesce(n.model_calls, 0), coalesce(n.unpriced_calls, 0),
           coalesce(n.nano_usd, 0)
      FROM jsonb_to_recordset(written)
               AS w (tenant text, sid bigint, session text, at bigint, used jsonb)
     CROSS JOIN LATERAL jsonb_to_recordset(w.used)
                AS c (model text, principal text, remote text, used jsonb)
     CROSS JOIN LATERAL jsonb_to_record(c.used)
                AS n (input_tokens bigint, output_tokens bigint, cache_read_tokens bigint,
                      cache_write_tokens bigint, model_calls bigint, unpriced_calls bigint,
                      nano_usd bigint)
     CROSS JOIN LATERAL (
               SELECT r.agent FROM outlast.sessions AS r WHERE r.id = ANY (ARRAY[w.session])
           ) AS s
        ON CONFLICT (tenant, sid, day, agent, model, principal, remote) DO UPDATE
       SET input_tokens = u.input_tokens + excluded.input_tokens,
           output_tokens = u.output_tokens + excluded.output_tokens,
           cache_read_tokens = u.cache_read_tokens + excluded.cache_read_tokens,
           cache_write_tokens = u.cache_write_tokens + excluded.cache_write_tokens,
           model_calls = u.model_calls + excluded.model_calls,
           unpriced_calls = u.unpriced_calls + excluded.unpriced_calls,
           nano_usd = u.nano_usd + excluded.nano_usd;
$$;

-- Keep the usage of a session that is erased, without the session. These rows are the only ones that
-- several transactions may want, each once, after all else: they are locked in the order of their keys.
CREATE OR REPLACE FUNCTION outlast.keep_usage(owner text, session bigint) RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO outlast.usage AS u
           (tenant, sid, day, agent, model, principal, remote,
            input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
            model_calls, unpriced_calls, nano_usd)
    SELECT o.tenant, 0, o.day, o.agent, o.model, o.principal, o.remote,
           o.input_tokens, o.output_tokens, o.cache_read_tokens, o.cache_write_tokens,
           o.model_calls, o.unpriced_calls, o.nano_usd
      FROM outlast.usage AS o
     WHERE o.tenant = owner AND o.sid = session
     ORDER BY o.day, o.agent, o.model, o.principal, o.remote
        ON CONFLICT (tenant, sid, day, agent, model, principal, remote) DO UPDATE
       SET input_tokens = u.input_tokens + excluded.input_tokens,
           output_tokens = u.output_tokens + excluded.output_tokens,
           cache_read_tokens = u.cache_read_tokens + excluded.cache_read_tokens,
           cache_write_tokens = u.cache_write_tokens + excluded.cache_write_tokens,
           model_calls = u.model_calls + excluded.model_calls,
           unpriced_calls = u.unpriced_calls + excluded.unpriced_calls,
           nano_usd = u.nano_usd + excluded.nano_usd;
    DELETE FROM outlast.usage AS o WHERE o.tenant = owner AND o.sid = session;
$$;
