-- Tenants take turns under limits, and who does not come for a place is passed by.

ALTER TABLE holdfast_rates ADD COLUMN last_tenant TEXT NOT NULL DEFAULT '';

ALTER TABLE holdfast_permits ADD COLUMN expected_at INTEGER;

ALTER TABLE holdfast_permits ADD COLUMN absent INTEGER NOT NULL DEFAULT 0 CHECK (absent IN (0, 1));

CREATE INDEX holdfast_permits_expected ON holdfast_permits (expected_at)
    WHERE expected_at IS NOT NULL;
