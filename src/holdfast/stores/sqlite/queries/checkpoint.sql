-- name: fill
-- Never committed: it only makes the write-ahead log grow in one step.
INSERT INTO holdfast_blobs (tenant, hash, data) VALUES ('', zeroblob(32), zeroblob(:size));
