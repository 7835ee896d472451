-- name: newest_budget
SELECT coalesce(max(revision), 0) FROM outlast_budgets WHERE revision > 0;

-- name: budget
SELECT terms, reserved, spent, returns
  FROM outlast_budgets
 WHERE tenant = :tenant AND scope = :scope AND who = :who AND day = :day;

-- name: budget_sums
SELECT reserved, spent
  FROM outlast_budgets
 WHERE tenant = :tenant AND scope = :scope AND who = :who AND day = :day;

-- name: budget_revision
SELECT revision
  FROM outlast_budgets
 WHERE tenant = :tenant AND scope = :scope AND who = :who AND day = :day;

-- name: budget_info
SELECT tenant, scope, who, day, terms, revision, reserved, spent
  FROM outlast_budgets
 WHERE tenant = :tenant AND scope = :scope AND who = :who AND day = :day;

-- name: list_budgets
SELECT tenant, scope, who, day, terms, revision, reserved, spent
  FROM outlast_budgets
 WHERE revision > 0
   AND terms <> ''
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:after_tenant IS NULL
        OR (tenant, scope, who, day) > (:after_tenant, :after_scope, :after_who, :after_day))
 ORDER BY tenant, scope, who, day
 LIMIT :limit;

-- name: set_budget
INSERT INTO outlast_budgets (tenant, scope, who, day, terms, revision)
VALUES (:tenant, :scope, :who, :day, :terms,
        (SELECT coalesce(max(revision), 0) + 1 FROM outlast_budgets WHERE revision > 0))
    ON CONFLICT (tenant, scope, who, day) DO UPDATE
   SET terms = excluded.terms, revision = excluded.revision, returns = returns + 1;

-- name: set_terms
UPDATE outlast_budgets
   SET terms = :terms, returns = returns + 1
 WHERE tenant = :tenant AND scope = :scope AND who = :who AND day = :day;

-- name: change_budget
INSERT INTO outlast_budgets (tenant, scope, who, day, terms, reserved, spent, returns)
VALUES (:tenant, :scope, :who, :day, :terms, :reserved, :spent, :returns)
    ON CONFLICT (tenant, scope, who, day) DO UPDATE
   SET terms = excluded.terms,
       reserved = excluded.reserved,
       spent = excluded.spent,
       returns = returns + excluded.returns;

-- name: return_to_budget
UPDATE outlast_budgets
   SET reserved = :reserved, returns = returns + 1
 WHERE tenant = :tenant AND scope = :scope AND who = :who AND day = :day;

-- name: budget_use
SELECT reserved, spent
  FROM outlast_budget_uses
 WHERE sid = :sid AND tenant = :tenant AND scope = :scope AND who = :who AND day = :day;

-- name: put_budget_use
INSERT INTO outlast_budget_uses (sid, tenant, scope, who, day, reserved, spent)
VALUES (:sid, :tenant, :scope, :who, :day, :reserved, :spent)
    ON CONFLICT (sid, tenant, scope, who, day) DO UPDATE
   SET reserved = excluded.reserved, spent = excluded.spent;

-- name: budget_uses
SELECT u.scope, u.who, u.day, u.reserved, u.spent
  FROM outlast_sessions AS s
  JOIN outlast_budget_uses AS u ON u.sid = s.sid
 WHERE s.id = :session_id
 ORDER BY u.scope, u.who, u.day;

-- name: await_budget
INSERT INTO outlast_budget_waiters (tenant, scope, who, day, lid)
VALUES (:tenant, :scope, :who, :day, :lid)
    ON CONFLICT DO NOTHING;

-- name: budget_waiters
SELECT w.lid, s.id
  FROM outlast_budget_waiters AS w
  JOIN outlast_lanes AS l ON l.lid = w.lid
  JOIN outlast_sessions AS s ON s.sid = l.sid
 WHERE w.tenant = :tenant AND w.scope = :scope AND w.who = :who AND w.day = :day;

-- name: forget_waiters
DELETE FROM outlast_budget_waiters
 WHERE tenant = :tenant AND scope = :scope AND who = :who AND day = :day;

-- name: erase_budget_uses
DELETE FROM outlast_budget_uses WHERE sid = :sid;

-- name: erase_budget_waiters
DELETE FROM outlast_budget_waiters
 WHERE lid IN (SELECT lid FROM outlast_lanes WHERE sid = :sid);

-- name: erase_session_budget
DELETE FROM outlast_budgets WHERE scope = 'session' AND who = :session_id;

-- name: budget_mismatches
  WITH used AS (
        SELECT tenant, scope, who, day,
               json_array(sum(reserved ->> 0), sum(reserved ->> 1), sum(reserved ->> 2),
                          sum(reserved ->> 3), sum(reserved ->> 4), sum(reserved ->> 5)) AS reserved,
               json_array(sum(spent ->> 0), sum(spent ->> 1), sum(spent ->> 2),
                          sum(spent ->> 3), sum(spent ->> 4), sum(spent ->> 5)) AS spent
          FROM outlast_budget_uses
         GROUP BY tenant, scope, who, day
       ),
       every AS (
        SELECT tenant, scope, who, day FROM used
         UNION
        SELECT tenant, scope, who, day FROM outlast_budgets
       ),
       compared AS (
        SELECT e.tenant, e.scope, e.who, e.day,
               coalesce(b.reserved, '[0,0,0,0,0,0]') AS reserved,
               coalesce(b.spent, '[0,0,0,0,0,0]') AS spent,
               coalesce(u.reserved, '[0,0,0,0,0,0]') AS used_reserved,
               coalesce(u.spent, '[0,0,0,0,0,0]') AS used_spent
          FROM every AS e
          LEFT JOIN outlast_budgets AS b USING (tenant, scope, who, day)
          LEFT JOIN used AS u USING (tenant, scope, who, day)
       )
SELECT tenant, scope, who, day, reserved, spent, used_reserved, used_spent
  FROM compared
 WHERE reserved <> used_reserved OR spent <> used_spent
 ORDER BY tenant, scope, who, day;
