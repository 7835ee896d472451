-- name: set_clock
-- In tests only: the time for the statements that follow in this transaction.
SELECT set_config('outlast_clock.now', :now, true);

-- name: read_clock
SELECT outlast.now_ms();

-- name: write
SELECT outlast.write(:rounds, :data)::text;

-- name: commit_alone
SELECT outlast.commit_alone(:session, :lane, :worker, :fence, :number, :seen, :at, :ready_at,
                             :status, :turn, :version, :digest, :records, :data, :epoch, :bytes,
                             :used);

-- name: claim
SELECT outlast.claim(:worker, :limit, :held, :agents, :version, :lanes, :most)::text;

-- name: acquire
SELECT outlast.acquire(:requests)::text;

-- name: lock_limits
SELECT outlast.lock_limits(:names, :commits);

-- name: has_overdue
SELECT 1
  FROM outlast.overdue_permits(outlast.now_ms() - :timeout, :line, :behind)
 LIMIT 1;

-- name: skip_stale
SELECT outlast.skip_stale(:timeout, :line, :behind)::text;

-- name: resize_limit
SELECT outlast.resize_limit(:name, :concurrency)::text;

-- name: set_here
-- For this transaction only.
SELECT set_config(:name, :value, true);

-- name: knows_session
SELECT 1 FROM outlast.sessions WHERE id = :session_id;

-- name: erase
SELECT outlast.erase(:session_id)::text;

-- name: reset_role
SET SESSION AUTHORIZATION DEFAULT;

-- name: reset_settings
RESET ALL;

-- name: drop_locks
SELECT pg_advisory_unlock_all();

-- name: drop_temporary
DISCARD TEMP;

-- name: drop_snapshots
-- Drop the snapshots of a session, which are folded from its log again.
WITH
    named AS (SELECT s.tenant, s.sid FROM outlast.sessions AS s WHERE s.id = :session_id),
    dropped AS (
        DELETE FROM outlast.snapshots AS n
         USING named AS s
         WHERE n.tenant = s.tenant AND n.sid = s.sid
    )
DELETE FROM outlast.slices AS n
 USING named AS s
 WHERE n.tenant = s.tenant AND n.sid = s.sid;
