-- Tenants take turns under limits, and who does not come for a place is passed by.
ALTER TABLE outlast.limits ADD COLUMN most integer NOT NULL DEFAULT 0;
ALTER TABLE outlast.limits ADD COLUMN last_tenant text COLLATE "C" NOT NULL DEFAULT '';
UPDATE outlast.limits AS m
   SET most = (SELECT coalesce(max(p.most), 0) FROM outlast.permits AS p WHERE p.name = m.name);

ALTER TABLE outlast.permits ADD COLUMN expected_at bigint;
ALTER TABLE outlast.permits ADD COLUMN absent boolean NOT NULL DEFAULT false;

DROP INDEX outlast.permits_in_order;
CREATE INDEX permits_in_order ON outlast.permits (name, held, tenant, pid) WHERE NOT absent;
CREATE INDEX permits_expected ON outlast.permits (expected_at) WHERE expected_at IS NOT NULL;

DROP FUNCTION IF EXISTS outlast.with_a_place(text[]);
