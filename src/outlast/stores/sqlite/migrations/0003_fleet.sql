-- What a worker says of itself, and whether it was asked to drain.

ALTER TABLE outlast_workers ADD COLUMN concurrency INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outlast_workers ADD COLUMN agents TEXT NOT NULL DEFAULT '[]';
ALTER TABLE outlast_workers ADD COLUMN lanes TEXT NOT NULL DEFAULT '[]';
ALTER TABLE outlast_workers ADD COLUMN draining INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1));
