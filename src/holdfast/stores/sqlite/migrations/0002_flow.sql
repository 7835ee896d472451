-- Fairness among tenants, limits on calls, and slices that several lanes change.

ALTER TABLE holdfast_sessions ADD COLUMN slices_changed INTEGER NOT NULL DEFAULT 0;

ALTER TABLE holdfast_lanes ADD COLUMN tenant TEXT NOT NULL DEFAULT '';

UPDATE holdfast_lanes
   SET tenant = (SELECT s.tenant FROM holdfast_sessions AS s WHERE s.sid = holdfast_lanes.sid);

CREATE INDEX holdfast_lanes_ready_of_tenant ON holdfast_lanes (tenant, ready_at)
    WHERE worker IS NULL AND ready_at IS NOT NULL;
CREATE INDEX holdfast_lanes_queued ON holdfast_lanes (tenant, queued) WHERE queued > 0;

DROP INDEX holdfast_lanes_owned;
CREATE INDEX holdfast_lanes_owned ON holdfast_lanes (worker, tenant, agent) WHERE worker IS NOT NULL;

CREATE TABLE holdfast_permits (
    pid INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    lid INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    most INTEGER NOT NULL,
    held INTEGER NOT NULL CHECK (held IN (0, 1)),
    UNIQUE (name, lid, call_id)
) STRICT;

CREATE INDEX holdfast_permits_in_order ON holdfast_permits (name, held, pid);
CREATE INDEX holdfast_permits_of_lane ON holdfast_permits (lid);

CREATE TABLE holdfast_rates (
    name TEXT NOT NULL PRIMARY KEY,
    paid_until INTEGER NOT NULL
) STRICT;
