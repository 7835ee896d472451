-- name: session_of_log
SELECT sid, tenant, last_offset, updated_at FROM outlast_session_list WHERE id = :session_id;

-- name: log_after
-- From the row on that holds the first offset asked for; it may begin before it.
SELECT key, count, lane, at, data
  FROM outlast_log
 WHERE key >= coalesce((SELECT max(key) FROM outlast_log WHERE key BETWEEN :base AND :first), :first)
   AND key <= :last
 ORDER BY key;

-- name: log_of_lane_after
-- The same of one lane: rows of others are passed over.
SELECT key, count, lane, at, data
  FROM outlast_log
 WHERE key >= coalesce((SELECT max(key) FROM outlast_log WHERE key BETWEEN :base AND :first), :first)
   AND key <= :last
   AND lane IS :lane
 ORDER BY key;

-- name: row_at
-- The row that holds an offset.
SELECT at, data
  FROM outlast_log
 WHERE key BETWEEN :base AND :wanted
 ORDER BY key DESC
 LIMIT 1;

-- name: log_before
SELECT key, count, lane, at, data
  FROM outlast_log
 WHERE key >= :base AND key < :before
 ORDER BY key DESC;

-- name: log_of_lane
-- A lane's own rows, and those of others that concern it: slices, the session's start and end.
SELECT key, count, lane, at, data
  FROM outlast_log
 WHERE key >= coalesce((SELECT max(key) FROM outlast_log WHERE key BETWEEN :base AND :first), :first)
   AND key <= :last
   AND (lane IS :lane OR marks & 6)
 ORDER BY key;

-- name: snapshot
SELECT n.last_offset, n.fold, n.data
  FROM outlast_lanes AS l
  JOIN outlast_snapshots AS n ON n.lid = l.lid
 WHERE l.sid = :sid AND l.lane = :lane AND n.fold = :fold;

-- name: slices
SELECT last_offset, fold, data FROM outlast_slices WHERE sid = :sid AND fold = :fold;

-- name: blob
SELECT data FROM outlast_blobs WHERE tenant = :tenant AND hash = :hash;
