-- name: usage_of_session
SELECT u.tenant, u.agent, u.model, u.principal, u.remote, u.day,
       u.input_tokens, u.output_tokens, u.cache_read_tokens, u.cache_write_tokens,
       u.model_calls, u.unpriced_calls, u.nano_usd
  FROM outlast.sessions AS s
  JOIN outlast.usage AS u ON u.tenant = s.tenant AND u.sid = s.sid
 WHERE s.id = :session_id;

-- name: usage_of_tree
-- What it used itself, and what it and all that it started used.
WITH RECURSIVE
    tree (tenant, sid, id) AS (
        SELECT s.tenant, s.sid, s.id FROM outlast.sessions AS s WHERE s.id = :session_id
         UNION ALL
        SELECT s.tenant, s.sid, s.id
          FROM tree AS t
          JOIN outlast.children AS c ON c.parent = t.id
          JOIN outlast.sessions AS s ON s.tenant = c.tenant AND s.sid = c.sid
    )
SELECT coalesce(sum(u.input_tokens) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0)::bigint,
       coalesce(sum(u.output_tokens) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0)::bigint,
       coalesce(sum(u.cache_read_tokens) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0)::bigint,
       coalesce(sum(u.cache_write_tokens) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0)::bigint,
       coalesce(sum(u.model_calls) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0)::bigint,
       coalesce(sum(u.unpriced_calls) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0)::bigint,
       coalesce(sum(u.nano_usd) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0)::bigint,
       coalesce(sum(u.input_tokens), 0)::bigint,
       coalesce(sum(u.output_tokens), 0)::bigint,
       coalesce(sum(u.cache_read_tokens), 0)::bigint,
       coalesce(sum(u.cache_write_tokens), 0)::bigint,
       coalesce(sum(u.model_calls), 0)::bigint,
       coalesce(sum(u.unpriced_calls), 0)::bigint,
       coalesce(sum(u.nano_usd), 0)::bigint
  FROM tree AS t
  JOIN outlast.usage AS u ON u.tenant = t.tenant AND u.sid = t.sid;

-- name: usage_by
SELECT v.name,
       coalesce(sum(v.input_tokens) FILTER (WHERE v.remote = ''), 0)::bigint,
       coalesce(sum(v.output_tokens) FILTER (WHERE v.remote = ''), 0)::bigint,
       coalesce(sum(v.cache_read_tokens) FILTER (WHERE v.remote = ''), 0)::bigint,
       coalesce(sum(v.cache_write_tokens) FILTER (WHERE v.remote = ''), 0)::bigint,
       coalesce(sum(v.model_calls) FILTER (WHERE v.remote = ''), 0)::bigint,
       coalesce(sum(v.unpriced_calls) FILTER (WHERE v.remote = ''), 0)::bigint,
       coalesce(sum(v.nano_usd) FILTER (WHERE v.remote = ''), 0)::bigint,
       coalesce(sum(v.input_tokens) FILTER (WHERE v.remote <> ''), 0)::bigint,
       coalesce(sum(v.output_tokens) FILTER (WHERE v.remote <> ''), 0)::bigint,
       coalesce(sum(v.cache_read_tokens) FILTER (WHERE v.remote <> ''), 0)::bigint,
       coalesce(sum(v.cache_write_tokens) FILTER (WHERE v.remote <> ''), 0)::bigint,
       coalesce(sum(v.model_calls) FILTER (WHERE v.remote <> ''), 0)::bigint,
       coalesce(sum(v.unpriced_calls) FILTER (WHERE v.remote <> ''), 0)::bigint,
       coalesce(sum(v.nano_usd) FILTER (WHERE v.remote <> ''), 0)::bigint
  FROM (SELECT u.*,
               CASE :by::text
               WHEN 'session' THEN coalesce(s.id, '')
               WHEN 'agent' THEN u.agent
               WHEN 'model' THEN u.model
               WHEN 'tenant' THEN u.tenant
               WHEN 'principal' THEN u.principal
               WHEN 'day' THEN to_char(date '1970-01-01' + u.day, 'YYYY-MM-DD')
               ELSE '' END COLLATE "C" AS name
          FROM outlast.usage AS u
          LEFT JOIN outlast.sessions AS s ON s.tenant = u.tenant AND s.sid = u.sid
         WHERE (:tenant::text IS NULL OR u.tenant = :tenant)
           AND (:session_id::text IS NULL OR s.id = :session_id)
           AND (:agent::text IS NULL OR u.agent = :agent)
           AND (:model::text IS NULL OR u.model = :model)
           AND (:principal::text IS NULL OR u.principal = :principal)
           AND (:since::integer IS NULL OR u.day >= :since)
           AND (:until::integer IS NULL OR u.day <= :until)) AS v
 WHERE :after::text IS NULL OR v.name > :after
 GROUP BY v.name
 ORDER BY v.name
 LIMIT :limit;
