-- Fairness among tenants, limits on calls, and slices that several lanes change.

ALTER TABLE outlast_sessions ADD COLUMN slices_changed INTEGER NOT NULL DEFAULT 0;

ALTER TABLE outlast_lanes ADD COLUMN tenant TEXT NOT NULL DEFAULT '';

UPDATE outlast_lanes
   SET tenant = (SELECT s.tenant FROM outlast_sessions AS s WHERE s.sid = outlast_lanes.sid);

CREATE INDEX outlast_lanes_ready_of_tenant ON outlast_lanes (tenant, ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX outlast_lanes_queued ON outlast_lanes (tenant, queued) WHERE queued > 0;

DROP INDEX outlast_lanes_owned;
CREATE INDEX outlast_lanes_owned ON outlast_lanes (worker, tenant, agent) WHERE worker IS NOT NULL;

CREATE TABLE outlast_permits (
    pid INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    lid INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    most INTEGER NOT NULL,
    held INTEGER NOT NULL CHECK (held IN (0, 1)),
    UNIQUE (name, lid, call_id)
) STRICT;

CREATE INDEX outlast_permits_in_order ON outlast_permits (name, held, pid);
CREATE INDEX outlast_permits_of_lane ON outlast_permits (lid);

CREATE TABLE outlast_rates (
    name TEXT NOT NULL PRIMARY KEY,
    paid_until INTEGER NOT NULL
) STRICT;
