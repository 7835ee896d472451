-- name: newest_budget
SELECT coalesce(max(b.revision), 0) FROM outlast.budgets AS b WHERE b.revision > 0;

-- name: find_budgets
SELECT w.scope, w.who, w.day, b.terms::text, b.reserved::text, b.spent::text, b.returns
  FROM jsonb_to_recordset(:keys::jsonb) AS w (scope text, who text, day integer)
 CROSS JOIN LATERAL outlast.find_budget(:tenant, w.scope, w.who, w.day) AS b
 WHERE b.terms IS NOT NULL;

-- name: list_budgets
-- A daily one as it stands today.
SELECT b.tenant, b.scope, b.who, b.day, b.terms::text, b.revision,
       coalesce(t.reserved, b.reserved)::text, coalesce(t.spent, b.spent)::text
  FROM outlast.budgets AS b
  LEFT JOIN outlast.budgets AS t
    ON b.day = -1 AND t.tenant = b.tenant AND t.scope = b.scope AND t.who = b.who
   AND t.day = :today::integer
 WHERE b.revision > 0
   AND b.terms IS NOT NULL
   AND (:tenant::text IS NULL OR b.tenant = :tenant)
   AND (:after_tenant::text IS NULL
        OR (b.tenant, b.scope, b.who, b.day)
         > (:after_tenant, :after_scope::text, :after_who::text, :after_day::integer))
 ORDER BY b.tenant, b.scope, b.who, b.day
 LIMIT :limit::integer;

-- name: budget_info
SELECT b.tenant, b.scope, b.who, b.day, b.terms::text, b.revision,
       coalesce(t.reserved, b.reserved)::text, coalesce(t.spent, b.spent)::text
  FROM outlast.budgets AS b
  LEFT JOIN outlast.budgets AS t
    ON b.day = -1 AND t.tenant = b.tenant AND t.scope = b.scope AND t.who = b.who
   AND t.day = :today::integer
 WHERE b.tenant = :tenant AND b.scope = :scope AND b.who = :who AND b.day = :day::integer;

-- name: set_budget
SELECT outlast.set_budget(
           :tenant, :scope, :who, :day::integer, :terms::jsonb, :limits::jsonb, :expected::bigint,
           :today::integer, outlast.now_ms()
       );

-- name: budget_uses
SELECT u.scope, u.who, u.day, u.reserved::text, u.spent::text
  FROM outlast.sessions AS s
  JOIN outlast.budget_uses AS u ON u.tenant = s.tenant AND u.sid = s.sid
 WHERE s.id = :session_id
 ORDER BY u.scope, u.who, u.day;
