-- name: fill
-- Never committed: it only makes the write-ahead log grow in one step.
INSERT INTO outlast_blobs (tenant, hash, data) VALUES ('', zeroblob(32), zeroblob(:size));
