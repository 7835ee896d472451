-- name: add_usage
INSERT INTO outlast_usage
SELECT s.sid, s.tenant, s.agent, :model, :principal, :remote, :day,
       :input_tokens, :output_tokens, :cache_read_tokens, :cache_write_tokens,
       :model_calls, :unpriced_calls, :nano_usd
  FROM outlast_sessions AS s
 WHERE s.sid = :sid
    ON CONFLICT (sid, day, model, principal, remote, tenant, agent) DO UPDATE
   SET input_tokens = input_tokens + excluded.input_tokens,
       output_tokens = output_tokens + excluded.output_tokens,
       cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
       cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens,
       model_calls = model_calls + excluded.model_calls,
       unpriced_calls = unpriced_calls + excluded.unpriced_calls,
       nano_usd = nano_usd + excluded.nano_usd;

-- name: keep_usage
-- Of a session that is erased: its usage stays, without it.
INSERT INTO outlast_usage
SELECT 0, tenant, agent, model, principal, remote, day,
       input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
       model_calls, unpriced_calls, nano_usd
  FROM outlast_usage
 WHERE sid = :sid
    ON CONFLICT (sid, day, model, principal, remote, tenant, agent) DO UPDATE
   SET input_tokens = input_tokens + excluded.input_tokens,
       output_tokens = output_tokens + excluded.output_tokens,
       cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
       cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens,
       model_calls = model_calls + excluded.model_calls,
       unpriced_calls = unpriced_calls + excluded.unpriced_calls,
       nano_usd = nano_usd + excluded.nano_usd;

-- name: erase_usage
DELETE FROM outlast_usage WHERE sid = :sid;

-- name: usage_of_session
SELECT u.tenant, u.agent, u.model, u.principal, u.remote, u.day,
       u.input_tokens, u.output_tokens, u.cache_read_tokens, u.cache_write_tokens,
       u.model_calls, u.unpriced_calls, u.nano_usd
  FROM outlast_sessions AS s
  JOIN outlast_usage AS u ON u.sid = s.sid
 WHERE s.id = :session_id;

-- name: usage_of_tree
-- What it used itself, and what it and all that it started used.
WITH RECURSIVE
    tree (sid, id) AS (
        SELECT s.sid, s.id FROM outlast_sessions AS s WHERE s.id = :session_id
         UNION ALL
        SELECT c.sid, c.id
          FROM tree AS t
          JOIN outlast_sessions AS c ON c.parent = t.id AND c.parent <> ''
    )
SELECT coalesce(sum(u.input_tokens) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0),
       coalesce(sum(u.output_tokens) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0),
       coalesce(sum(u.cache_read_tokens) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0),
       coalesce(sum(u.cache_write_tokens) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0),
       coalesce(sum(u.model_calls) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0),
       coalesce(sum(u.unpriced_calls) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0),
       coalesce(sum(u.nano_usd) FILTER (WHERE t.id = :session_id AND u.remote = ''), 0),
       coalesce(sum(u.input_tokens), 0),
       coalesce(sum(u.output_tokens), 0),
       coalesce(sum(u.cache_read_tokens), 0),
       coalesce(sum(u.cache_write_tokens), 0),
       coalesce(sum(u.model_calls), 0),
       coalesce(sum(u.unpriced_calls), 0),
       coalesce(sum(u.nano_usd), 0)
  FROM tree AS t
  JOIN outlast_usage AS u ON u.sid = t.sid;

-- name: usage_by
SELECT CASE :by
       WHEN 'session' THEN coalesce(s.id, '')
       WHEN 'agent' THEN u.agent
       WHEN 'model' THEN u.model
       WHEN 'tenant' THEN u.tenant
       WHEN 'principal' THEN u.principal
       WHEN 'day' THEN date(u.day * 86400, 'unixepoch')
       ELSE '' END AS name,
       coalesce(sum(u.input_tokens) FILTER (WHERE u.remote = ''), 0),
       coalesce(sum(u.output_tokens) FILTER (WHERE u.remote = ''), 0),
       coalesce(sum(u.cache_read_tokens) FILTER (WHERE u.remote = ''), 0),
       coalesce(sum(u.cache_write_tokens) FILTER (WHERE u.remote = ''), 0),
       coalesce(sum(u.model_calls) FILTER (WHERE u.remote = ''), 0),
       coalesce(sum(u.unpriced_calls) FILTER (WHERE u.remote = ''), 0),
       coalesce(sum(u.nano_usd) FILTER (WHERE u.remote = ''), 0),
       coalesce(sum(u.input_tokens) FILTER (WHERE u.remote <> ''), 0),
       coalesce(sum(u.output_tokens) FILTER (WHERE u.remote <> ''), 0),
       coalesce(sum(u.cache_read_tokens) FILTER (WHERE u.remote <> ''), 0),
       coalesce(sum(u.cache_write_tokens) FILTER (WHERE u.remote <> ''), 0),
       coalesce(sum(u.model_calls) FILTER (WHERE u.remote <> ''), 0),
       coalesce(sum(u.unpriced_calls) FILTER (WHERE u.remote <> ''), 0),
       coalesce(sum(u.nano_usd) FILTER (WHERE u.remote <> ''), 0)
  FROM outlast_usage AS u
  LEFT JOIN outlast_sessions AS s ON s.sid = u.sid
 WHERE (:tenant IS NULL OR u.tenant = :tenant)
   AND (:session_id IS NULL OR s.id = :session_id)
   AND (:agent IS NULL OR u.agent = :agent)
   AND (:model IS NULL OR u.model = :model)
   AND (:principal IS NULL OR u.principal = :principal)
   AND (:since IS NULL OR u.day >= :since)
   AND (:until IS NULL OR u.day <= :until)
 GROUP BY name
HAVING :after IS NULL OR name > :after
 ORDER BY name
 LIMIT :limit;
