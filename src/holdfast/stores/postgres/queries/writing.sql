-- name: set_clock
-- In tests alone: what time it is for the statements that follow in this transaction.
SELECT set_config('holdfast_clock.now', :now, true);

-- name: write
SELECT holdfast.write(:wanted, :data)::text;

-- name: commit_alone
SELECT holdfast.commit_alone(:session, :lane, :worker, :fence, :number, :seen, :at, :ready_at,
                             :status, :turn, :version, :digest, :records, :data);

-- name: claim
SELECT holdfast.claim(:worker, :limit, :held, :agents, :version, :lanes, :most)::text;

-- name: acquire
SELECT holdfast.acquire(:wishes)::text;

-- name: hold_limits
SELECT holdfast.hold_limits(:names, :commits);

-- name: has_overdue
SELECT 1
  FROM holdfast.permits
 WHERE expected_at < holdfast.now_ms() - :patience
 LIMIT 1;

-- name: pass_by
SELECT holdfast.pass_by(:patience)::text;

-- name: set_here
-- For this transaction alone.
SELECT set_config(:name, :value, true);

-- name: knows_session
SELECT 1 FROM holdfast.sessions WHERE id = :session_id;

-- name: erase
SELECT holdfast.erase(:session_id)::text;

-- name: reset_role
SET SESSION AUTHORIZATION DEFAULT;

-- name: reset_settings
RESET ALL;

-- name: drop_locks
SELECT pg_advisory_unlock_all();

-- name: drop_temporary
DISCARD TEMP;
