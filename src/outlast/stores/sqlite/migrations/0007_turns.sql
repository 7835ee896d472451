-- Tenants take turns under limits, and who does not come for a place is passed by.

ALTER TABLE outlast_rates ADD COLUMN last_tenant TEXT NOT NULL DEFAULT '';

ALTER TABLE outlast_permits ADD COLUMN expected_at INTEGER;

ALTER TABLE outlast_permits ADD COLUMN absent INTEGER NOT NULL DEFAULT 0 CHECK (absent IN (0, 1));

CREATE INDEX outlast_permits_expected ON outlast_permits (expected_at)
    WHERE expected_at IS NOT NULL;
