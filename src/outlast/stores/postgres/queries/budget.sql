-- name: newest_budget
SELECT coalesce(max(b.revision), 0) FROM outlast.budgets AS b WHERE b.revision > 0;

-- name: find_budgets
SELECT w.scope, w.who, w.day, b.terms::text, b.reserved::text, b.spent::text, b.returns
  FROM jsonb_to_recordset(:keys::jsonb) AS w (scope text, who text, day integer)
 CROSS JOIN LATERAL outlast.find_budget(:tenant, w.scope, w.who, w.day) AS b
 WHERE b.terms IS NOT NULL
    OR (w.scope = 'session'
        AND EXISTS (SELECT FROM outlast.budgets AS r
                     WHERE r.tenant = :tenant AND r.scope = w.scope AND r.who = w.who
                       AND r.day = w.day AND r.revision > 0));

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

-- name: budget_mismatches
WITH
    used AS (
        SELECT u.tenant, u.scope, u.who, u.day,
               ARRAY[sum(u.reserved[1]), sum(u.reserved[2]), sum(u.reserved[3]),
                     sum(u.reserved[4]), sum(u.reserved[5]), sum(u.reserved[6])]::bigint[] AS reserved,
               ARRAY[sum(u.spent[1]), sum(u.spent[2]), sum(u.spent[3]),
                     sum(u.spent[4]), sum(u.spent[5]), sum(u.spent[6])]::bigint[] AS spent
          FROM outlast.budget_uses AS u
         GROUP BY u.tenant, u.scope, u.who, u.day
    ),
    compared AS (
        SELECT tenant, scope, who, day,
               coalesce(b.reserved, '{0,0,0,0,0,0}') AS reserved,
               coalesce(b.spent, '{0,0,0,0,0,0}') AS spent,
               coalesce(u.reserved, '{0,0,0,0,0,0}') AS used_reserved,
               coalesce(u.spent, '{0,0,0,0,0,0}') AS used_spent
          FROM outlast.budgets AS b
          FULL JOIN used AS u USING (tenant, scope, who, day)
    )
SELECT tenant, scope, who, day, reserved::text, spent::text, used_reserved::text, used_spent::text
  FROM compared
 WHERE reserved <> used_reserved OR spent <> used_spent
 ORDER BY tenant, scope, who, day;

-- name: balance_budget
SELECT outlast.balance_budget(:tenant, :scope, :who, :day::integer, outlast.now_ms());
