-- name: load
SELECT * FROM holdfast.load(:session_id, :lane, :fold, :after);

-- name: log_after
SELECT * FROM holdfast.read(:session_id, :after, :limit);

-- name: log_before
SELECT * FROM holdfast.read_back(:session_id, :before, :limit);

-- name: blobs
SELECT encode(b.hash, 'hex'), b.data
  FROM jsonb_array_elements_text(:hashes) AS w (hash)
  JOIN holdfast.blobs AS b ON b.tenant = :tenant AND b.hash = decode(w.hash, 'hex');

-- name: heads_of_blobs
-- The first bytes of a compressed value say how large it is.
SELECT encode(b.hash, 'hex'), substr(b.data, 1, 18)
  FROM jsonb_array_elements_text(:hashes) AS w (hash)
  JOIN holdfast.blobs AS b ON b.tenant = :tenant AND b.hash = decode(w.hash, 'hex');

-- name: next_ready_at
SELECT min(ready_at)
  FROM holdfast.lanes
 WHERE worker IS NULL AND ready_at IS NOT NULL AND ready_at > :after;

-- name: effect
SELECT scope, key, session_id, call_id, state, value
  FROM holdfast.effects
 WHERE scope = :scope AND key = :key;
