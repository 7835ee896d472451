-- Tenants take turns under limits, and who does not come for a place is passed by.
ALTER TABLE holdfast.limits ADD COLUMN most integer NOT NULL DEFAULT 0;
ALTER TABLE holdfast.limits ADD COLUMN last_tenant text COLLATE "C" NOT NULL DEFAULT '';
UPDATE holdfast.limits AS m
   SET most = (SELECT coalesce(max(p.most), 0) FROM holdfast.permits AS p WHERE p.name = m.name);

ALTER TABLE holdfast.permits ADD COLUMN expected_at bigint;
ALTER TABLE holdfast.permits ADD COLUMN absent boolean NOT NULL DEFAULT false;

DROP INDEX holdfast.permits_in_order;
CREATE INDEX permits_in_order ON holdfast.permits (name, held, tenant, pid) WHERE NOT absent;
CREATE INDEX permits_expected ON holdfast.permits (expected_at) WHERE expected_at IS NOT NULL;

DROP FUNCTION IF EXISTS holdfast.with_a_place(text[]);
